// Limits of a device, measured by gpu_limits.py. Every kernel writes a result that depends on all of its work,
// so that the compiler removes nothing.

constexpr int CHAINS = 8;     // independent operations of a thread
constexpr int UNROLLED = 16;  // rounds of a loop

// Copies n words of 16 bytes.
extern "C" __global__ void copy(const float4* __restrict__ from, float4* __restrict__ to, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) to[i] = from[i];
}

// rounds * UNROLLED * CHAINS fused multiply-adds a thread. cycles: of the first thread of a block, or 0.
extern "C" __global__ void multiply_add(float factor, int rounds, float* __restrict__ out,
                                        long long* __restrict__ cycles) {
    float sums[CHAINS];
    for (int c = 0; c < CHAINS; c++) sums[c] = (float)(threadIdx.x + c);
#ifdef __CUDA_ARCH__
    const long long start = clock64();
#endif
    for (int r = 0; r < rounds; r++) {
#pragma unroll
        for (int u = 0; u < UNROLLED; u++) {
#pragma unroll
            for (int c = 0; c < CHAINS; c++) sums[c] = fmaf(sums[c], factor, factor);
        }
    }
    long long taken = 0;
#ifdef __CUDA_ARCH__
    taken = clock64() - start;
#endif
    float sum = 0.0f;
    for (int c = 0; c < CHAINS; c++) sum += sums[c];
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
    if (threadIdx.x == 0) cycles[blockIdx.x] = taken;
}

// The same in float64.
extern "C" __global__ void multiply_add_double(double factor, int rounds, double* __restrict__ out) {
    double sums[CHAINS];
    for (int c = 0; c < CHAINS; c++) sums[c] = (double)(threadIdx.x + c);
    for (int r = 0; r < rounds; r++) {
#pragma unroll
        for (int u = 0; u < UNROLLED; u++) {
#pragma unroll
            for (int c = 0; c < CHAINS; c++) sums[c] = fma(sums[c], factor, factor);
        }
    }
    double sum = 0.0;
    for (int c = 0; c < CHAINS; c++) sum += sums[c];
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

// rounds * UNROLLED exponentials a thread.
extern "C" __global__ void exponential(float factor, int rounds, float* __restrict__ out) {
    float x[2] = {factor * threadIdx.x, factor};
    for (int r = 0; r < rounds; r++) {
#pragma unroll
        for (int u = 0; u < UNROLLED; u++) x[u % 2] = __expf(x[u % 2]);
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = x[0] + x[1];
}

// rounds * UNROLLED loads of 16 bytes a thread; all threads of a block load the same address.
template <class Load>
__device__ __forceinline__ unsigned load_rounds(int rounds, int size, Load load) {
    unsigned a = 0, b = 0;
    int at = 0;
    for (int r = 0; r < rounds; r++) {
#pragma unroll
        for (int u = 0; u < UNROLLED; u++) {
            const uint4 quad = load((at + u) & (size - 1));
            a ^= quad.x ^ quad.y;  // one operation of three inputs
            b ^= quad.z ^ quad.w;
        }
        at += UNROLLED;
    }
    return a ^ b;
}

constexpr int QUADS = 512;

extern "C" __global__ void load_shared(const uint4* __restrict__ table, int rounds,
                                       unsigned* __restrict__ out) {
    __shared__ uint4 cache[QUADS];
    for (int i = threadIdx.x; i < QUADS; i += blockDim.x) cache[i] = table[i];
    __syncthreads();
    out[blockIdx.x * blockDim.x + threadIdx.x] = load_rounds(rounds, QUADS, [&](int i) { return cache[i]; });
}

extern "C" __global__ void load_uniform(const uint4* __restrict__ table, int rounds,
                                        unsigned* __restrict__ out) {
    out[blockIdx.x * blockDim.x + threadIdx.x] =
        load_rounds(rounds, QUADS, [&](int i) { return __ldg(table + i); });
}
