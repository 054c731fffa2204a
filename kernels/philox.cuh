// The uniform of every label: Philox4x32-10, equal to that of the CPU (kernels/cpu/philox.hpp).
//
// Source: Salmon, Moraes, Dror and Shaw (2011), "Parallel random numbers: as easy as 1, 2, 3", SC11. Counter:
// event number (low, high word), iteration, chain. Key: seed (low, high word). Word 0 of the four serves
// labels, the other words serve the sides of a division.
#pragma once

struct Key {
    unsigned long long seed;
    unsigned chain, iteration;
};

// ((x >> 9) + 1/2) / 2^23, where x is one of the four words: exact in float32 and strictly between 0 and 1.
__device__ __forceinline__ float uniform(const Key& key, unsigned long long event, int word = 0) {
    unsigned c0 = (unsigned)event, c1 = (unsigned)(event >> 32), c2 = key.iteration, c3 = key.chain;
    unsigned k0 = (unsigned)key.seed, k1 = (unsigned)(key.seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const unsigned high0 = __umulhi(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
        const unsigned high1 = __umulhi(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;
        c0 = high1 ^ c1 ^ k0;
        c1 = low1;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    const unsigned x = word == 0 ? c0 : word == 1 ? c1 : word == 2 ? c2 : c3;
    return ((float)(x >> 9) + 0.5f) * 0x1p-23f;
}
