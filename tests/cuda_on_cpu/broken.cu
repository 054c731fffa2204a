// Kernels with one mistake each, which the emulation or a sanitizer must report, and some correct kernels.
// All take x and y, float32 [256], and are launched with one block of 256 threads.

#define ALL_LANES 0xFFFFFFFFu

extern "C" __global__ void reversed(const float* x, float* y) {
    __shared__ float cache[256];
    cache[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = cache[blockDim.x - 1 - threadIdx.x];
}

extern "C" __global__ void reversed_without_barrier(const float* x, float* y) {
    __shared__ float cache[256];
    cache[threadIdx.x] = x[threadIdx.x];
    y[threadIdx.x] = cache[blockDim.x - 1 - threadIdx.x];
}

// A warp's barrier orders its own lanes only.
extern "C" __global__ void reversed_in_warps(const float* x, float* y) {
    __shared__ float cache[256];
    cache[threadIdx.x] = x[threadIdx.x];
    __syncwarp();
    y[threadIdx.x] = cache[threadIdx.x ^ 31];
}

extern "C" __global__ void reversed_behind_warp_barrier(const float* x, float* y) {
    __shared__ float cache[256];
    cache[threadIdx.x] = x[threadIdx.x];
    __syncwarp();
    y[threadIdx.x] = cache[blockDim.x - 1 - threadIdx.x];
}

extern "C" __global__ void reads_shared_before_writing(const float* x, float* y) {
    __shared__ float cache[256];
    if (threadIdx.x != 7) cache[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = cache[threadIdx.x];
}

extern "C" __global__ void divergent_barrier(const float* x, float* y) {
    if (threadIdx.x % 2 == 0) __syncthreads();
    else __syncthreads();
    y[threadIdx.x] = x[threadIdx.x];
}

// A barrier does not wait for threads that have ended.
extern "C" __global__ void barrier_after_exit(const float* x, float* y) {
    if (threadIdx.x >= 37) return;
    __syncthreads();
    y[threadIdx.x] = x[threadIdx.x];
}

extern "C" __global__ void barrier_against_warp(const float* x, float* y) {
    if (threadIdx.x == 5) __syncthreads();
    y[threadIdx.x] = x[threadIdx.x] + (float)__ballot_sync(ALL_LANES, 1);
}

extern "C" __global__ void shuffle_after_exit(const float* x, float* y) {
    if (threadIdx.x == 5) return;
    y[threadIdx.x] = __shfl_xor_sync(ALL_LANES, x[threadIdx.x], 1);
}

extern "C" __global__ void mask_without_caller(const float* x, float* y) {
    y[threadIdx.x] = __shfl_sync(0x0000FFFFu, x[threadIdx.x], 0);
}

extern "C" __global__ void mask_without_source(const float* x, float* y) {
    if (threadIdx.x % 32 < 16) y[threadIdx.x] = __shfl_down_sync(0x0000FFFFu, x[threadIdx.x], 1);
}

extern "C" __global__ void two_masks(const float* x, float* y) {
    y[threadIdx.x] = __shfl_xor_sync(threadIdx.x % 32 == 3 ? 0x0000FFFFu : ALL_LANES, x[threadIdx.x], 1);
}

extern "C" __global__ void warp_operations(const float* x, float* y) {
    const double sum = __shfl_up_sync(ALL_LANES, (double)x[threadIdx.x], 1) + __shfl_sync(ALL_LANES, 3u, 40);
    const int odd = __popc(__ballot_sync(ALL_LANES, threadIdx.x % 2));
    y[threadIdx.x] = (float)sum + (float)(odd + __ffs(1 << threadIdx.x % 32));
    y[threadIdx.x] += __shfl_down_sync(ALL_LANES, x[threadIdx.x], 8, 16);
}

extern "C" __global__ void past_shared(const float* x, float* y) {
    __shared__ float cache[256];
    cache[threadIdx.x + 1] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = cache[threadIdx.x];
}

extern "C" __global__ void past_global(const float* x, float* y) { y[threadIdx.x + 1] = x[threadIdx.x]; }

extern "C" __global__ void reads_past_global(const float* x, float* y) {
    y[threadIdx.x] = x[threadIdx.x + 1];
}

extern "C" __global__ void reads_output_as_constant(const float* x, float* y) {
    y[threadIdx.x] = x[threadIdx.x];
    y[threadIdx.x] += __ldg(y + threadIdx.x);
}

extern "C" __global__ void misaligned(const float* x, float* y) {
    const float4 four = *reinterpret_cast<const float4*>(x + 1 + threadIdx.x / 4 * 4 % 248);
    y[threadIdx.x] = four.x;
}

extern "C" __global__ void __launch_bounds__(128) bounded(const float* x, float* y) {
    y[threadIdx.x] = x[threadIdx.x];
}

extern "C" __global__ void rank(const float* x, float* y) {
    __shared__ int n;
    if (threadIdx.x == 0) n = (int)x[0];
    __syncthreads();
    y[threadIdx.x] = (float)atomicAdd(&n, 1);
}
