// accumulate, add_runs: counts, sums and scatters of the events by label, weighted, chunk by chunk. Two launches
// on one stream, after the events are sorted by label (sort_labels.cu).
//
//   events      float32 [slots][CHUNK][PADDED_DIM]         read
//   components  float32 [n_components][PACK_DIM]           read: the means are the centres
//   weights     float32 [slots][CHUNK], or null            read; null: every event has weight 1
//   order       uint16 [slots][CHUNK]                      read: places in the chunk, by label
//   starts      uint32 [slots][n_components + 1]           read: start of each component in the order
//   extras      uint32 [slots][EXTRAS]                     read: runs after the first one of a component
//   moments     float64 [slots][n_components][N_MOMENTS]   written (moments.cuh); 0 without events
//   of_extras   float64 [slots][EXTRAS][N_MOMENTS]         the moments of the extra runs
//
// A block sums a run: at most RUN events of one component in one chunk (runs.cuh). The first n_components blocks
// of a slot have the first run of each component, the others the extra runs; so a component with half of all
// events is divided among blocks. add_runs adds the extra runs to the first ones. There is no atomic operation.
// The order of all additions is that of the events in the chunk, whatever the launch.
//
// Launch    accumulate: grid (n_components + EXTRAS, slots), block 256.
//           add_runs: grid (EXTRAS, slots), block 256.
// Shared    accumulate: 384 (queue) + 64 * (D + 1) * 4 + N_MOMENTS * 8 + D * 4: 34,440 at D = 64; add_runs: none.
// Budget    accumulate, D = 14: registers 63, stack 0, shared 5,240 bytes; no spills.
//           registers by architecture: sm_75 63, sm_80 32, sm_90 32, sm_120 40.
// Budget    add_runs, D = 14: registers 24, stack 0, shared 0 bytes; no spills.
//           registers by architecture: sm_75 24, sm_80 22, sm_90 24, sm_120 24.
// Measured  accumulate, NVIDIA H200: 0.166 ms for 1,000,000 events, 11% of the floor; limited by shared 39%.
// Measured  add_runs, NVIDIA H200: 0.007 ms for 1,000,000 events, 0% of the floor; limited by L2 0%.
// Limits    D 1 to 64; n_components 1 to 65,535.
// Equals    Engine::add_moments of kernels/cpu/pass_draw.cpp, within float32 rounding.
// Source    Suchard et al. (2010), Appendix A, step 2.
#include "moments.cuh"
#include "runs.cuh"

extern "C" __global__ void __launch_bounds__(MOMENT_THREADS)
    accumulate(const float* __restrict__ events, const float* __restrict__ components,
               const float* __restrict__ weights, const unsigned short* __restrict__ order,
               const unsigned* __restrict__ starts, const unsigned* __restrict__ extras, int n_components,
               double* __restrict__ moments, double* __restrict__ of_extras) {
    __shared__ Queue<GROUP> queue;
    __shared__ float z[GROUP][WIDTH];
    __shared__ Moments sums;
    unsigned component = blockIdx.x, number = 0;
    double* to = moments + ((size_t)blockIdx.y * n_components + component) * N_MOMENTS;
    if ((int)component >= n_components) {
        const size_t extra = (size_t)blockIdx.y * EXTRAS + component - n_components;
        const unsigned run = extras[extra];
        if (run == NO_RUN) return;
        component = run & 0xFFFFu;
        number = run >> 16;
        to = of_extras + extra * N_MOMENTS;
    }
    starts += (size_t)blockIdx.y * (n_components + 1) + component;
    const unsigned first = starts[0] + number * RUN, end = min(first + RUN, starts[1]);
    events += (size_t)blockIdx.y * CHUNK * PADDED_DIM;
    order += (size_t)blockIdx.y * CHUNK;
    reset(sums, components + (size_t)component * PACK_DIM);
    for (unsigned from = first; from < end; from += GROUP) {
        const unsigned at = from + threadIdx.x;
        if (threadIdx.x < GROUP && at < end) {
            queue.places[threadIdx.x] = order[at];
            queue.shares[threadIdx.x] = weight_at(weights, order[at]);
        }
        __syncthreads();
        add_group<MOMENT_WARPS>(events, queue, 0, (int)min(end - from, (unsigned)GROUP), z, sums);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < N_MOMENTS; i += MOMENT_THREADS) to[i] = sums.totals[i];
}

extern "C" __global__ void __launch_bounds__(MOMENT_THREADS)
    add_runs(int n_components, const unsigned* __restrict__ extras, const double* __restrict__ of_extras,
             double* __restrict__ moments) {
    extras += (size_t)blockIdx.y * EXTRAS;
    of_extras += (size_t)blockIdx.y * EXTRAS * N_MOMENTS;
    const unsigned run = extras[blockIdx.x];
    if (run == NO_RUN || run >> 16 != 1) return;  // the block of a component's second run adds them all
    moments += ((size_t)blockIdx.y * n_components + (run & 0xFFFFu)) * N_MOMENTS;
    for (int i = threadIdx.x; i < N_MOMENTS; i += blockDim.x) {
        double sum = moments[i];
        for (unsigned e = blockIdx.x; e < EXTRAS && (extras[e] & 0xFFFFu) == (run & 0xFFFFu); e++)
            sum += of_extras[(size_t)e * N_MOMENTS + i];
        moments[i] = sum;
    }
}
