// The uniform of every label: Philox4x32-10, W events at a time.
//
// Source: Salmon, Moraes, Dror and Shaw (2011), "Parallel random numbers: as easy as 1, 2, 3", SC11. Counter:
// event number (low, high word), iteration, chain. Key: seed (low, high word). Word 0 of the four serves
// labels, the other words serve the scans of a division.
#pragma once

#include "simd.hpp"
#include "sweep.hpp"

namespace dpmix {
namespace {

// High and low words of multiplier * x.
DPMIX_INLINE void multiply(std::uint32_t multiplier, Words x, Words& high, Words& low) {
    const Words m = multiplier - Words{};
    const LongWords even = multiply_even(x, m);
    const LongWords odd = multiply_even((Words)((LongWords)x >> 32), m);
    const std::uint64_t low_half = 0xFFFFFFFFu;
    low = (Words)((even & low_half) | (odd << 32));
    high = (Words)((even >> 32) | (odd & ~low_half));
}

// ((x >> 9) + 1/2) / 2^23, where x is one of the four words: exact in float32 and strictly between 0 and 1.
DPMIX_INLINE Floats uniform(const Key& key, Words event_low, Words event_high, int word) {
    Words c0 = event_low, c1 = event_high, c2 = key.iteration - Words{}, c3 = key.chain - Words{};
    std::uint32_t k0 = static_cast<std::uint32_t>(key.seed), k1 = static_cast<std::uint32_t>(key.seed >> 32);
    for (int round = 0; round < 10; round++) {
        Words high0, low0, high1, low1;
        multiply(0xD2511F53u, c0, high0, low0);
        multiply(0xCD9E8D57u, c2, high1, low1);
        c0 = high1 ^ c1 ^ k0;
        c1 = low1;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    const Words x = word == 0 ? c0 : word == 1 ? c1 : word == 2 ? c2 : c3;
    const Floats bits = __builtin_convertvector((Ints)(x >> 9), Floats);
    return (bits + splat(0.5f)) * splat(0x1p-23f);
}

}  // namespace
}  // namespace dpmix
