// sum_chunks: the sums of a batch of chunks, added to one order-free sum per number on the device (exact.cuh).
// The host reads this sum, or with one device the rounded sum, once a pass, whatever the number of chunks.
//
// sum_parts adds the log densities of a chunk (of its blocks, or of the parts of each pair), in a fixed order:
//
//   parts       float64 [slots][n_sums][n_parts]   read
//   totals      float64 [slots][n_sums]            written
//
// add_chunks adds the numbers of every chunk of the batch, or none if a chunk has events to be done again:
//
//   moments     float64 [slots][n_moments]         read: of all components
//   totals      float64 [slots][n_totals]          read
//   far_counts  uint32 [slots]                     read: far events that were skipped
//   state       float64 [5][n_moments + n_totals]  added to: c, a0, a1, a2 of each sum; then written: the rounded sum
//
// copy_rows copies the sums and the count of every component, for sums by sample:
//
//   moments     float64 [slots][n_components][N_MOMENTS]   read
//   rows        float64 [slots][n_components][D + 1]       written
//
// A thread has one sum. Neighbours read neighbouring numbers. The additions are those of the CPU engine, so
// the state does not depend on the order or the grouping of chunks.
//
// Launch    sum_parts: grid (n_sums, slots), block THREADS. add_chunks: grid (sums / MOMENT_THREADS rounded up,
//           1), block MOMENT_THREADS. copy_rows: grid (n_components * (D + 1) / MOMENT_THREADS rounded up, slots),
//           block MOMENT_THREADS.
// Shared    sum_parts: 256 bytes.
// Budget    sum_parts, D = 14: registers 44, stack 0, shared 256 bytes; no spills.
//           registers by architecture: sm_75 44, sm_80 30, sm_90 30, sm_120 37.
// Budget    add_chunks, D = 14: registers 49, stack 32, shared 0 bytes; no spills.
//           registers by architecture: sm_75 49, sm_80 48, sm_90 48, sm_120 48.
// Budget    copy_rows, D = 14: registers 16, stack 0, shared 0 bytes; no spills.
//           registers by architecture: sm_75 14, sm_80 16, sm_90 16, sm_120 14.
// Measured  sum_parts, NVIDIA H200: 0.008 ms for 1,000,000 events, 0% of the floor; limited by float32 1%.
// Measured  add_chunks, NVIDIA H200: 0.018 ms for 1,000,000 events, 6% of the floor; limited by L2 12%.
// Measured  copy_rows, NVIDIA H200: 0.035 ms for 1,000,000 events, 1% of the floor; limited by memory (model).
// Limits    n_moments + n_totals below 2^31; 2^22 chunks over all merged states (dpmix.engines.exact).
// Equals    Sums::add of kernels/cpu/exact.cpp; sum_parts a sum in float64 within rounding.
// Source    Demmel and Nguyen (2015), Parallel reproducible summation, IEEE Trans. Comput. 64:2060.
#include "exact.cuh"
#include "moments.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    sum_parts(const double* __restrict__ parts, int n_parts, double* __restrict__ totals) {
    const size_t at = (size_t)blockIdx.y * gridDim.x + blockIdx.x;
    double sum = 0.0;
    for (int part = threadIdx.x; part < n_parts; part += THREADS) sum += parts[at * n_parts + part];
    sum = block_sum(sum);
    if (threadIdx.x == 0) totals[at] = sum;
}

extern "C" __global__ void __launch_bounds__(MOMENT_THREADS)
    add_chunks(const double* __restrict__ moments, const double* __restrict__ totals,
               const unsigned* __restrict__ far_counts, int n_slots, int n_moments, int n_totals,
               double* __restrict__ state) {
    const int at = blockIdx.x * MOMENT_THREADS + threadIdx.x;
    const size_t n = (size_t)n_moments + n_totals;
    if (at >= n_moments + n_totals) return;
    for (int slot = 0; slot < n_slots; slot++) {
        if (far_counts[slot] != 0) return;
    }
    const double* numbers = at < n_moments ? moments + at : totals + (at - n_moments);
    const size_t stride = at < n_moments ? n_moments : n_totals;
    ExactSum sum{state[at], state[n + at], state[2 * n + at], state[3 * n + at]};
#pragma unroll 4  // loads ahead of the chain of additions
    for (int slot = 0; slot < n_slots; slot++) sum.add(numbers[slot * stride]);
    state[at] = sum.c;
    state[n + at] = sum.a0;
    state[2 * n + at] = sum.a1;
    state[3 * n + at] = sum.a2;
    state[4 * n + at] = sum.value();
}

extern "C" __global__ void __launch_bounds__(MOMENT_THREADS)
    copy_rows(const double* __restrict__ moments, int n_components, double* __restrict__ rows) {
    const int at = blockIdx.x * MOMENT_THREADS + threadIdx.x, n_rows = n_components * WIDTH;
    if (at >= n_rows) return;
    const size_t component = (size_t)blockIdx.y * n_components + at / WIDTH;
    rows[(size_t)blockIdx.y * n_rows + at] = moments[component * N_MOMENTS + N_MOMENTS - WIDTH + at % WIDTH];
}
