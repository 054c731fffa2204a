// Pruning: the log densities of a warp's events for one component, given up after some rows of the whitener if
// the component then cannot have weight for any of these events.
//
// The squares are added row by row and only grow, in rounded arithmetic too: fmaf(y, y, sum) is never less than
// sum. So the constant minus a partial sum is at least the log density, bit for bit, and a component is dropped
// only if the dense draw adds nothing for it (weights.cuh): its weight is 0, or it is silent, because less than
// 2^-25 of a sum is added to that sum. The words are those of kernels/cpu/evaluate.hpp.
#pragma once

#include "weights.cuh"

constexpr float MARGIN = 0.01f;   // nats: more than the rounding of a log density near FAR (0.004)
constexpr float SILENT = 17.33f;  // nats: a little more than 25 log 2 = 17.3287

// Rows of the first stage, and of each later one. A vote costs a warp about as much as a row of 5 channels.
constexpr int FIRST_STAGE = N_CHANNELS < 10 ? 2 : 4;
constexpr int STAGE = N_CHANNELS <= 16 ? 2 : N_CHANNELS / 8;

__host__ __device__ constexpr int stage_end(int first) {
    const int end = first == 0 ? FIRST_STAGE : first + STAGE;
    return end < N_CHANNELS ? end : N_CHANNELS;
}

// Multiply-adds of rows [first, end) of a component and an event: of the triangle, the centring, the squares.
__host__ __device__ constexpr unsigned row_work(int first, int end) {
    return (end * (end + 1) - first * (first + 1)) / 2 + 2 * (end - first);
}

// The log density below which a component has weight 0 if one has log density `best`.
__device__ __forceinline__ float zero_weight(float best, float bin) {
    Weights sums;
    sums.reset();
    sums.add(best, bin);
    return (INTEGERS - sums.shift - bin - 1.0f) * LN2;  // 1: a whole power of two for all rounding
}

// Computes rows [FIRST, N_CHANNELS) in stages. False if the component was dropped; `sums` are then partial. All
// lanes of the warp must call it.
template <int FIRST, int E>
__device__ __forceinline__ bool add_stages(Row& row, float constant, const float (&x)[E][N_CHANNELS],
                                           const float (&low)[E], float (&centred)[E][N_CHANNELS],
                                           float (&sums)[E], unsigned& work) {
    constexpr int END = stage_end(FIRST);
    add_rows<FIRST, END>(row, x, centred, sums);
    work += row_work(FIRST, END);
    bool any = false;
#pragma unroll
    for (int e = 0; e < E; e++) any |= constant - sums[e] > low[e];
    if (!__any_sync(0xFFFFFFFFu, any)) return false;
    if constexpr (END < N_CHANNELS) return add_stages<END>(row, constant, x, low, centred, sums, work);
    return true;
}
