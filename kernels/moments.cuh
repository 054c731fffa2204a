// Moments of the events of one component, computed by one block: the lower triangle, by rows, of the sum of
// share * z z' with z = (x - mean, 1). The share is a responsibility times the weight of the event. It holds
// the scatter, then in row D the sums, and last the count.
//
// The component's events and their shares pass through a queue in shared memory in the order of the chunk.
// Each GROUP of them is centred in shared memory, summed in float32 and added to float64 totals in shared
// memory, so the order of all additions is that of the events. Row a belongs to a warp, column b to lane b mod
// 32. Equals kernels/cpu/moments.hpp except for the order of the events.
#pragma once

#include "mixture.cuh"

constexpr int MOMENT_THREADS = 256;
constexpr int MOMENT_WARPS = MOMENT_THREADS / 32;
constexpr int N_MOMENTS = (N_CHANNELS + 1) * (N_CHANNELS + 2) / 2;
constexpr int GROUP = 64;
constexpr int WIDTH = N_CHANNELS + 1;
constexpr int COLUMNS = (WIDTH + 31) / 32;                 // of the triangle, per lane
constexpr int LABELS_PER_THREAD = 8;                       // one 16-byte load
constexpr int STRIP = MOMENT_THREADS * LABELS_PER_THREAD;  // labels that a block scans at a time

// CAPACITY is a power of two, at least GROUP plus the events that one strip can add.
template <int CAPACITY>
struct Queue {
    unsigned short places[CAPACITY];
    float shares[CAPACITY];
};

// The totals of a component, and the means that its events are centred about.
struct Moments {
    double totals[N_MOMENTS];
    float means[N_CHANNELS];
};

// The sum of `own` over the threads before this one; `all` becomes the sum over the block. All threads must
// call it, with a barrier before the next call.
__device__ __forceinline__ int count_before(int own, int* of_warps, int& all) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int upto = own;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        const int other = __shfl_up_sync(0xFFFFFFFFu, upto, distance);
        if (lane >= distance) upto += other;
    }
    if (lane == 31) of_warps[warp] = upto;
    __syncthreads();
    int before = upto - own;
    all = 0;
#pragma unroll
    for (int w = 0; w < MOMENT_WARPS; w++) {
        if (w < warp) before += of_warps[w];
        all += of_warps[w];
    }
    return before;
}

// A bit for each of the thread's eight events from `first` on: bit i is 1 if the label of event first + i is
// wanted.
template <class Wanted>
__device__ __forceinline__ unsigned events_with(const uint4* eights, int first, int count, Wanted wanted) {
    unsigned found = 0;
    if (first < count) {
        const uint4 eight = __ldg(eights + first / LABELS_PER_THREAD);
        const unsigned pairs[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
        for (int i = 0; i < LABELS_PER_THREAD; i++) {
            const unsigned label = pairs[i / 2] >> (16 * (i % 2)) & 0xFFFFu;
            if (first + i < count && wanted(label)) found |= 1u << i;
        }
    }
    return found;
}

// Sets the totals to 0 and loads the means of a component. Needs a barrier before `add_group`.
__device__ __forceinline__ void reset(Moments& moments, const float* component) {
    for (int i = threadIdx.x; i < N_MOMENTS; i += blockDim.x) moments.totals[i] = 0.0;
    for (int i = threadIdx.x; i < N_CHANNELS; i += blockDim.x) moments.means[i] = component[mean_place(i)];
}

// Adds `count` events of the queue, at most GROUP, from entry `head` on. All N_WARPS warps of the block must
// call it. A total belongs to one thread.
template <int N_WARPS, int CAPACITY>
__device__ __forceinline__ void add_group(const float* events, const Queue<CAPACITY>& queue, unsigned head,
                                          int count, float (&z)[GROUP][WIDTH], Moments& moments) {
    constexpr int ROWS = (WIDTH + N_WARPS - 1) / N_WARPS;  // of the triangle, per warp
    for (int i = threadIdx.x; i < count * WIDTH; i += 32 * N_WARPS) {
        const int t = i / WIDTH, column = i % WIDTH;
        const float* event = events + (size_t)queue.places[(head + t) % CAPACITY] * PADDED_DIM;
        z[t][column] = column < N_CHANNELS ? event[column] - moments.means[column] : 1.0f;
    }
    __syncthreads();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float sums[ROWS][COLUMNS] = {};
    for (int t = 0; t < count; t++) {
        const float share = queue.shares[(head + t) % CAPACITY];
        float right[COLUMNS];
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) right[c] = share * z[t][min(lane + 32 * c, WIDTH - 1)];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float left = z[t][min(warp + N_WARPS * r, WIDTH - 1)];
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) sums[r][c] = fmaf(left, right[c], sums[r][c]);
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            const int row = warp + N_WARPS * r, column = lane + 32 * c;
            if (row < WIDTH && column <= row)
                moments.totals[row * (row + 1) / 2 + column] += (double)sums[r][c];
        }
    }
    __syncthreads();  // z is no longer in use
}
