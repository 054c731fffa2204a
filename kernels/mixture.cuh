// Shapes, the packed mixture and the log densities of events, shared by all kernels.
//
// Shapes follow from the number of channels, given by -DN_CHANNELS=D. As in Suchard et al. (2010), an event
// is padded to PADDED_DIM floats and loaded in 16-byte words. The parameters of a component (constant, mean
// and whitener) lie in one row of PACK_DIM floats. A block caches rows in shared memory, and every thread
// uses them for all of its events. Events stay in registers.
//
// A packed row is ordered by rows of the whitener, each after the mean of its channel:
//     constant, then for r = 0 .. D-1: mean_r, W_r0, W_r1, .. W_rr; zeros to PACK_DIM
// The first rows need the first channels alone, so a component can be given up after some of them.
// W is the whitener times sqrt(1/2): log pi_j N(x | mu_j, Sigma_j) = constant - sum_r y_r^2, y = W (x -
// mean).
//
// Built with -fmad=false: a fused multiply-add is written fmaf. The operations on an event and their order
// are those of kernels/cpu/whiten.hpp, so log densities have the same bits as on the CPU.
#pragma once

#include "limits.cuh"

#ifndef N_CHANNELS
#define N_CHANNELS 14
#endif

constexpr int PADDED_DIM = (N_CHANNELS + 3) / 4 * 4;
constexpr int PACK_DIM = (1 + N_CHANNELS + N_CHANNELS * (N_CHANNELS + 1) / 2 + 3) / 4 * 4;
constexpr int PACK_QUADS = PACK_DIM / 4;

// -D sets these only in benchmarks/cuda_variants.py, which compares them.
#ifndef THREADS
#define THREADS 128
#endif
#ifndef EVENTS_PER_THREAD  // their x and y take at most 2 * 64 registers
#define EVENTS_PER_THREAD (PADDED_DIM <= 16 ? 4 : PADDED_DIM <= 32 ? 2 : 1)
#endif
#ifndef CACHED  // rows of components in shared memory
#define CACHED (PADDED_DIM <= 16 ? 16 : PADDED_DIM <= 32 ? 8 : 4)
#endif

constexpr int WARPS = THREADS / 32;
constexpr int EVENTS_PER_BLOCK = THREADS * EVENTS_PER_THREAD;

constexpr float LOWEST = -1.0e30f;

// Number of events in the chunk of slot blockIdx.y.
__device__ __forceinline__ int events_in(const unsigned* chunks, unsigned long long n_events) {
    const unsigned long long left = n_events - (unsigned long long)chunks[blockIdx.y] * CHUNK;
    return left < CHUNK ? (int)left : CHUNK;
}

// The number of events in the chunk, for a block that does EVENTS_PER_BLOCK of them; 0 if the block has none,
// and its log likelihood is then set to 0.
__device__ __forceinline__ int events_for_block(const unsigned* chunks, unsigned long long n_events,
                                                double* log_likelihood) {
    const int count = events_in(chunks, n_events);
    if ((int)blockIdx.x * EVENTS_PER_BLOCK < count) return count;
    if (threadIdx.x == 0) *log_likelihood = 0.0;
    return 0;
}

// The weight of the event at a place of the chunk of slot blockIdx.y.
__device__ __forceinline__ float weight_at(const float* weights, int place) {
    return weights == nullptr ? 1.0f : __ldg(weights + (size_t)blockIdx.y * CHUNK + place);
}

template <int E>
__device__ __forceinline__ void fill(float (&values)[E], float value) {
#pragma unroll
    for (int e = 0; e < E; e++) values[e] = value;
}

// Loads the events first, first + stride, ... of `count`; repeats the last one beyond the end.
template <int E>
__device__ __forceinline__ void load_events(const float* events, int first, int stride, int count,
                                            float (&x)[E][N_CHANNELS]) {
#pragma unroll
    for (int e = 0; e < E; e++) {
        const int i = min(first + e * stride, count - 1);
        const float4* event = reinterpret_cast<const float4*>(events + (size_t)i * PADDED_DIM);
#pragma unroll
        for (int q = 0; q < PADDED_DIM / 4; q++) {
            const float4 quad = __ldg(event + q);
            x[e][4 * q] = quad.x;
            if (4 * q + 1 < N_CHANNELS) x[e][4 * q + 1] = quad.y;
            if (4 * q + 2 < N_CHANNELS) x[e][4 * q + 2] = quad.z;
            if (4 * q + 3 < N_CHANNELS) x[e][4 * q + 3] = quad.w;
        }
    }
}

enum class Place { SHARED, GLOBAL };

// From so many channels on, nvcc splits loads of quads from global memory into single floats, except __ldg. With
// fewer channels, __ldg spills 8 bytes more.
constexpr int SPLIT_CHANNELS = 62;

// A reader of a packed row, four floats at a time from its start. In unrolled code `at` is a constant.
template <Place PLACE = Place::SHARED>
struct Row {
    const float4* quads;
    int at;
    float4 quad;

    __device__ __forceinline__ float next() {
        constexpr bool LDG = PLACE == Place::GLOBAL && N_CHANNELS >= SPLIT_CHANNELS;
        const int place = at++ % 4;
        if (place == 0) {
            if constexpr (LDG) quad = __ldg(quads + at / 4);
            else quad = quads[at / 4];
        }
        return place == 0 ? quad.x : place == 1 ? quad.y : place == 2 ? quad.z : quad.w;
    }
};

// Place of the mean of channel r in a packed row; row r of the whitener follows it.
__host__ __device__ constexpr int mean_place(int r) { return 1 + r * (r + 3) / 2; }

// Adds the squares of rows [R, END) of the whitened events to `sums`. `centred` holds channels [0, R) and is
// filled up to END. This is a recursion because nvcc does not unroll a loop over more than 60 rows, and
// `centred` must stay in registers.
template <int R, int END, Place PLACE, int E>
__device__ __forceinline__ void add_rows(Row<PLACE>& row, const float (&x)[E][N_CHANNELS],
                                         float (&centred)[E][N_CHANNELS], float (&sums)[E]) {
    const float mean = row.next();
    float y[E];
#pragma unroll
    for (int e = 0; e < E; e++) centred[e][R] = x[e][R] - mean;
#pragma unroll
    for (int i = 0; i <= R; i++) {
        const float factor = row.next();
#pragma unroll
        for (int e = 0; e < E; e++)
            y[e] = i == 0 ? factor * centred[e][0] : fmaf(factor, centred[e][i], y[e]);
    }
#pragma unroll
    for (int e = 0; e < E; e++) sums[e] = fmaf(y[e], y[e], sums[e]);
    if constexpr (R + 1 < END) add_rows<R + 1, END>(row, x, centred, sums);
}

// log pi_j N(x | mu_j, Sigma_j) of E events for the component of the row.
template <Place PLACE = Place::SHARED, int E>
__device__ __forceinline__ void log_densities(const float (&x)[E][N_CHANNELS], const float4* packed,
                                              float (&l)[E]) {
    Row<PLACE> row{packed, 0, {}};
    const float constant = row.next();
    float centred[E][N_CHANNELS], sums[E] = {};
    add_rows<0, N_CHANNELS>(row, x, centred, sums);
#pragma unroll
    for (int e = 0; e < E; e++) l[e] = constant - sums[e];
}

// Calls body(j, l) with the log densities of a thread's events for each component in turn. All threads of the
// block must call it: they fill the cache together, float4 [CACHED * PACK_QUADS] in shared memory.
template <int E, class Body>
__device__ __forceinline__ void for_each_component(const float (&x)[E][N_CHANNELS], const float* components,
                                                   int n_components, float4* cache, Body body) {
    const float4* rows = reinterpret_cast<const float4*>(components);
    for (int first = 0; first < n_components; first += CACHED) {
        const int count = min(CACHED, n_components - first);
        __syncthreads();  // the rows before are no longer in use
        for (int q = threadIdx.x; q < count * PACK_QUADS; q += blockDim.x)
            cache[q] = __ldg(rows + (size_t)first * PACK_QUADS + q);
        __syncthreads();
        for (int c = 0; c < count; c++) {
            float l[E];
            log_densities(x, cache + c * PACK_QUADS, l);
            body(first + c, l);
        }
    }
}

// Adds a component to an event's running sum of weights exp(l - best), where best is the largest log density
// so far. A weight `floor` nats below the best is 0.
__device__ __forceinline__ void add_weight(float l, float floor, float& best, float& total) {
    const float gap = l - best;
    const float weight = fabsf(gap) < floor ? __expf(-fabsf(gap)) : 0.0f;
    total = gap > 0.0f ? fmaf(total, weight, 1.0f) : total + weight;
    best = fmaxf(best, l);
}

// Sum over the block in a fixed order, for thread 0. May be called once in a kernel.
__device__ __forceinline__ double block_sum(double value) {
    __shared__ double of_warps[32];
    for (int distance = 16; distance > 0; distance /= 2)
        value += __shfl_down_sync(0xFFFFFFFFu, value, distance);
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
    __syncthreads();
    double sum = 0.0;
    if (threadIdx.x == 0) {
        for (int w = 0; w < (int)blockDim.x / 32; w++) sum += of_warps[w];
    }
    return sum;
}
