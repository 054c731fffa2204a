// draw_labels: Gibbs step 1 in one pass. It draws a label per event by inverting the cumulative sum of its
// weights, and sums the log likelihood. There is no array of events by components. sum_log_likelihoods gives the
// pruned draw (draw_sorted.cu) the same sums of log likelihoods, bit for bit, and is launched after it.
//
//   events           float32 [slots][CHUNK][PADDED_DIM]          read
//   components       float32 [n_components][PACK_DIM]            read (mixture.cuh)
//   exact            float64 [n_components][PACK_DIM], or null   read for far events (far.cuh)
//   chunks           uint32 [slots]                              read: the chunk in each slot
//   weights          float32 [slots][CHUNK], or null             read; null: every event has weight 1
//   labels           uint16 [slots][CHUNK]                       written for existing events
//   each             float64 [slots][CHUNK]                      read by sum_log_likelihoods: the log likelihood of
//                                                                each event, by place
//   log_likelihoods  float64 [slots][CHUNK / EVENTS_PER_BLOCK]   written: weighted sums over the events of a
//                                                                block
//   far_counts       uint32 [slots]                              added to: far events skipped without `exact`
//
// The draw has two levels. First, all components are evaluated, and an event keeps its cumulative sum of
// weights (weights.cuh) at the end of each of at most TILES tiles of components. These sums give the tile of
// its label. Then the block's events are sorted by tile, and each warp takes 32 of them and evaluates that
// one tile again. Its lanes read the same rows. With 512 events and 16 tiles that is 1.5 groups per tile, so
// about a tenth of the work is done twice.
//
// Launch    both: grid (CHUNK / EVENTS_PER_BLOCK, slots), block THREADS; a thread takes EVENTS_PER_THREAD events.
// Shared    CACHED * PACK_DIM * 4 + EVENTS_PER_BLOCK * 18 + 392 bytes: 39,368 at D = 64; sum_log_likelihoods: 256.
// Budget    draw_labels, D = 14: registers 128, stack 848, shared 17,288 bytes; spills 112 bytes.
//           registers by architecture: sm_75 128, sm_80 128, sm_90 128, sm_120 128.
//           The stack is each thread's `partial`.
// Budget    sum_log_likelihoods, D = 14: registers 26, stack 0, shared 256 bytes; no spills.
//           registers by architecture: sm_75 26, sm_80 26, sm_90 22, sm_120 18.
// Measured  draw_labels, NVIDIA H200: 2.408 ms for 1,000,000 events, 44% of the floor; limited by float32 53%.
// Measured  sum_log_likelihoods, NVIDIA H200: 0.013 ms for 1,000,000 events, 16% of the floor; limited by memory 10%.
// Limits    D 1 to 64; n_components 1 to 65,536.
// Equals    Engine::draw_labels of kernels/cpu/pass_draw.cpp, except labels whose uniform is within rounding of
//           a step of the cumulative sum.
// Source    Suchard et al. (2010), Appendix A, step 1.

// Shapes of blocks as other kernels have them (mixture.cuh), except where others were faster on an H200: at D = 8,
// 2 events per thread instead of 4 saved 11%; at D = 64, 256 threads instead of 128 saved 17%. `Layout` repeats
// them. -D sets these only in benchmarks/cuda_variants.py.
#if !defined(EVENTS_PER_THREAD) && N_CHANNELS > 4 && N_CHANNELS <= 8
#define EVENTS_PER_THREAD 2
#endif
#if !defined(THREADS) && N_CHANNELS > 61  // below, nvcc spills
#define THREADS 256
#endif

#include "draw.cuh"

// Blocks for which a multiprocessor has registers. On an H200, 4 instead of 3 saved 7% at D = 14, and 3 instead
// of 2 saved 11% at D = 30.
#ifndef MIN_BLOCKS
#define MIN_BLOCKS (PADDED_DIM <= 4 ? 7 : PADDED_DIM <= 8 ? 8 : PADDED_DIM <= 16 ? 4 : THREADS == 256 ? 1 : 3)
#endif

// The label among the components [first, end), whose rows these are, or -1; before: the sum of the weights
// before `first`.
__device__ __forceinline__ int pick(const float (&x)[1][N_CHANNELS], const float4* rows, int first, int end,
                                    float bin, const Choice& c, float before) {
    Search search{c.shift, bin, c.point, before, -1};
    for (int j = first; j < end; j++, rows += PACK_QUADS) {
        float l[1];
        log_densities(x, rows, l);
        search.add(j, l[0]);
    }
    return search.label;
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    draw_labels(const float* __restrict__ events, const float* __restrict__ components,
                const double* __restrict__ exact, const unsigned* __restrict__ chunks,
                const float* __restrict__ weights, unsigned long long n_events,
                unsigned long long first_event, int n_components, float weight_floor, unsigned long long seed,
                unsigned chain, unsigned iteration, unsigned short* __restrict__ labels,
                double* __restrict__ log_likelihoods, unsigned* __restrict__ far_counts) {
    __shared__ float4 cache[CACHED * PACK_QUADS];
    __shared__ Choice choices[EVENTS_PER_BLOCK];
    __shared__ unsigned short order[EVENTS_PER_BLOCK];
    __shared__ int counts[TILES], starts[TILES + 1];

    const int block_first = blockIdx.x * EVENTS_PER_BLOCK;
    double* log_likelihood = log_likelihoods + (size_t)blockIdx.y * gridDim.x + blockIdx.x;
    const int count = events_for_block(chunks, n_events, log_likelihood);
    if (count == 0) return;
    events += (size_t)blockIdx.y * CHUNK * PADDED_DIM;
    labels += (size_t)blockIdx.y * CHUNK;
    first_event += (unsigned long long)chunks[blockIdx.y] * CHUNK;
    const Draw draw{events,      exact,  n_components,           weight_floor, {seed, chain, iteration},
                    first_event, labels, far_counts + blockIdx.y};
    const int tile_size = (n_components + TILES - 1) / TILES;
    const int n_tiles = (n_components + tile_size - 1) / tile_size;
    if (threadIdx.x < TILES) counts[threadIdx.x] = 0;
    const float bin = bin_of(weight_floor);

    // 1. All components.
    const int first = block_first + threadIdx.x;
    float x[EVENTS_PER_THREAD][N_CHANNELS];
    Weights sums[EVENTS_PER_THREAD];
    Weights partial[EVENTS_PER_THREAD][TILES];  // local memory: each entry is written and read once
    load_events(events, first, THREADS, count, x);
#pragma unroll
    for (int e = 0; e < EVENTS_PER_THREAD; e++) sums[e].reset();
    int tile = 0, tile_end = tile_size;
    for_each_component(x, components, n_components, cache, [&](int j, const float (&l)[EVENTS_PER_THREAD]) {
        add_weights(l, bin, sums);
        if (j + 1 < tile_end) return;
#pragma unroll
        for (int e = 0; e < EVENTS_PER_THREAD; e++) partial[e][tile] = sums[e];
        tile++;
        tile_end += tile_size;
    });

    // 2. The tile of each event's label.
    double sum = 0.0;
    int rank[EVENTS_PER_THREAD] = {};  // of an event in its tile; the order does not change results
#pragma unroll
    for (int e = 0; e < EVENTS_PER_THREAD; e++) {
        const int place = first + e * THREADS, at = threadIdx.x + e * THREADS;
        choices[at].tile = -1;
        if (place >= count) continue;
        sum += weight_at(weights, place) * choose(draw, place, sums[e], partial[e], n_tiles, choices[at]);
        if (choices[at].tile >= 0) rank[e] = atomicAdd(counts + choices[at].tile, 1);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        *log_likelihood = sum;
        starts[0] = 0;
        for (int t = 0; t < TILES; t++) starts[t + 1] = starts[t] + counts[t];
    }
    __syncthreads();
#pragma unroll
    for (int e = 0; e < EVENTS_PER_THREAD; e++) {
        const int at = threadIdx.x + e * THREADS;
        if (choices[at].tile >= 0) order[starts[choices[at].tile] + rank[e]] = (unsigned short)at;
    }
    __syncthreads();

    // 3. The label within its tile.
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const float4* rows = reinterpret_cast<const float4*>(components);
    for (int t = 0, group = 0; t < n_tiles; t++) {
        const int end = min((t + 1) * tile_size, n_components);
        const float4* tile_rows = rows + (size_t)t * tile_size * PACK_QUADS;
        for (int start = starts[t]; start < starts[t + 1]; start += 32, group++) {
            if (group % WARPS != warp) continue;
            const int at = order[min(start + lane, starts[t + 1] - 1)];
            const Choice& c = choices[at];
            float own[1][N_CHANNELS];
            load_events(events, block_first + at, 0, count, own);
            int label = pick(own, tile_rows, t * tile_size, end, bin, c, c.before);
            // If uniform * total was rounded to the total, the last tile may have no weight.
            if (label < 0) label = pick(own, rows, 0, n_components, bin, c, 0.0f);
            if (start + lane < starts[t + 1]) labels[block_first + at] = (unsigned short)label;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    sum_log_likelihoods(const double* __restrict__ each, const unsigned* __restrict__ chunks,
                        const float* __restrict__ weights, unsigned long long n_events,
                        double* __restrict__ log_likelihoods) {
    double* log_likelihood = log_likelihoods + (size_t)blockIdx.y * gridDim.x + blockIdx.x;
    const int count = events_for_block(chunks, n_events, log_likelihood);
    if (count == 0) return;
    each += (size_t)blockIdx.y * CHUNK;
    double sum = 0.0;
#pragma unroll
    for (int e = 0; e < EVENTS_PER_THREAD; e++) {
        const int place = blockIdx.x * EVENTS_PER_BLOCK + threadIdx.x + e * THREADS;
        if (place < count) sum += weight_at(weights, place) * each[place];
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) *log_likelihood = sum;
}
