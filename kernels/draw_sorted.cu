// draw_sorted: Gibbs step 1 with pruning. The labels and log likelihoods are those of draw_labels.cu, bit for bit.
// It is launched after the events are sorted by their last labels (sort_labels.cu), and before sum_log_likelihoods
// (draw_labels.cu).
//
//   events           float32 [slots][CHUNK][PADDED_DIM]          read
//   components       float32 [n_components][PACK_DIM]            read (mixture.cuh)
//   exact            float64 [n_components][PACK_DIM], or null   read for far events (far.cuh)
//   chunks           uint32 [slots]                              read: the chunk in each slot
//   order            uint16 [slots][CHUNK]                       read: places in the chunk, by last label
//   now              uint16 [n_components], or null              read: the component that each last label now is;
//                                                                null: the same
//   labels           uint16 [slots][CHUNK]                       read: the last labels; then written
//   each             float64 [slots][CHUNK]                      written: the log likelihood of each event, by place
//   far_counts       uint32 [slots]                              added to: far events skipped without `exact`
//   work             uint64 [slots]                              added to: multiply-adds, by warps: per event of a
//                                                                warp
//
// A warp takes 32 * EVENTS_PER_THREAD events that are neighbours in the order. Most of them have the same last
// label. First, the components of some last labels are evaluated in full: their log densities bound which
// components can have weight. Then all components are evaluated in stages of rows (stages.cuh), and a component is
// dropped as soon as all lanes vote that it adds nothing for their events. Any last labels give the same results;
// good ones make them sooner. The second level evaluates the components of a tile that were not dropped, for the
// events of the warp whose labels lie in this tile.
//
// Launch    grid (CHUNK / EVENTS_PER_BLOCK, slots), block THREADS.
// Shared    CACHED * PACK_DIM * 4 + EVENTS_PER_BLOCK * 16 + 2,048 bytes: 38,464 at D = 64.
// Budget    draw_sorted, D = 14: registers 168, stack 816, shared 17,920 bytes; spills 8 bytes.
//           registers by architecture: sm_75 168, sm_80 168, sm_90 168, sm_120 168.
// Measured  draw_sorted, NVIDIA H200: 1.322 ms for 1,000,000 events, 2% of the floor; limited by float32 37%.
// Limits    D 1 to 64; n_components 1 to 4,096.
// Equals    draw_labels of draw_labels.cu, bit for bit.
// Source    Suchard et al. (2010), Appendix A, step 1. Pruning: docs/explanation/kernels.md.
#include "draw.cuh"
#include "stages.cuh"

constexpr unsigned ALL = 0xFFFFFFFFu;
constexpr int KEPT_WORDS = MAX_COMPONENTS / 32;

// Sets `low`, below which a component adds nothing, by the components of some last labels of the warp's events:
// of every 32nd event and the last one. last(i) is the present component of event i of the warp.
template <class Last>
__device__ __forceinline__ void seed_bounds(const float (&x)[EVENTS_PER_THREAD][N_CHANNELS],
                                            const float4* rows, float bin, Last last,
                                            float (&low)[EVENTS_PER_THREAD], unsigned& work) {
    fill(low, LOWEST);
    int tried = -1;
#pragma unroll 1
    for (int i = 0; i <= 32 * EVENTS_PER_THREAD; i += 32) {
        const int label = last(min(i, 32 * EVENTS_PER_THREAD - 1));
        if (label == tried) continue;
        tried = label;
        float l[EVENTS_PER_THREAD];
        log_densities(x, rows + (size_t)label * PACK_QUADS, l);
#pragma unroll
        for (int e = 0; e < EVENTS_PER_THREAD; e++) low[e] = fmaxf(low[e], l[e]);
        work += row_work(0, N_CHANNELS);
    }
#pragma unroll
    for (int e = 0; e < EVENTS_PER_THREAD; e++) low[e] = zero_weight(low[e], bin);
}

// The label of one event per lane, among the components [first, end) of its tile that were kept, for the lanes
// whose choice is in this tile.
__device__ __forceinline__ int pick_kept(const float (&x)[1][N_CHANNELS], const float4* rows,
                                         const unsigned* kept, int first, int end, float bin, const Choice& c,
                                         float before) {
    Search search{c.shift, bin, c.point, before, -1};
    for (int j = first; j < end; j++) {
        if (!(kept[j / 32] >> (j % 32) & 1)) continue;
        float l[1];
        log_densities(x, rows + (size_t)j * PACK_QUADS, l);
        search.add(j, l[0]);
    }
    return search.label;
}

extern "C" __global__ void __launch_bounds__(THREADS, 3)
    draw_sorted(const float* __restrict__ events, const float* __restrict__ components,
                const double* __restrict__ exact, const unsigned* __restrict__ chunks,
                const unsigned short* __restrict__ order, const unsigned short* __restrict__ now,
                unsigned long long n_events, unsigned long long first_event, int n_components,
                float weight_floor, unsigned long long seed, unsigned chain, unsigned iteration,
                unsigned short* __restrict__ labels, double* __restrict__ each,
                unsigned* __restrict__ far_counts, unsigned long long* __restrict__ work) {
    __shared__ float4 cache[CACHED * PACK_QUADS];
    __shared__ Choice choices[EVENTS_PER_BLOCK];
    __shared__ unsigned kept_by[WARPS][KEPT_WORDS];

    const int count = events_in(chunks, n_events);
    if ((int)blockIdx.x * EVENTS_PER_BLOCK >= count) return;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    events += (size_t)blockIdx.y * CHUNK * PADDED_DIM;
    labels += (size_t)blockIdx.y * CHUNK;
    order += (size_t)blockIdx.y * CHUNK;
    const float4* rows = reinterpret_cast<const float4*>(components);
    const float bin = bin_of(weight_floor);
    const int tile_size = (n_components + TILES - 1) / TILES;
    const int n_tiles = (n_components + tile_size - 1) / tile_size;
    unsigned* kept = kept_by[warp];
    for (int w = lane; w < KEPT_WORDS; w += 32) kept[w] = 0;

    // 1. Bounds from the last labels.
    const int warp_first = blockIdx.x * EVENTS_PER_BLOCK + warp * 32 * EVENTS_PER_THREAD,
              first = warp_first + lane;
    float x[EVENTS_PER_THREAD][N_CHANNELS], low[EVENTS_PER_THREAD];
    Weights sums[EVENTS_PER_THREAD];
    Weights partial[EVENTS_PER_THREAD][TILES];  // local memory: each entry is written and read once
    unsigned done = 0;                          // multiply-adds
#pragma unroll
    for (int e = 0; e < EVENTS_PER_THREAD; e++) {
        const int place = order[min(first + 32 * e, count - 1)];
        float own[1][N_CHANNELS];
        load_events(events, place, 0, count, own);
#pragma unroll
        for (int i = 0; i < N_CHANNELS; i++) x[e][i] = own[0][i];
        sums[e].reset();
    }
    const auto last = [&](int i) {
        const int label = labels[order[min(warp_first + i, count - 1)]];
        return now == nullptr ? label : (int)now[label];
    };
    seed_bounds(x, rows, bin, last, low, done);

    // 2. All components, in stages.
    int tile_end = tile_size;
    for (int from = 0; from < n_components; from += CACHED) {
        const int cached = min(CACHED, n_components - from);
        __syncthreads();  // the rows before are no longer in use
        for (int q = threadIdx.x; q < cached * PACK_QUADS; q += THREADS)
            cache[q] = __ldg(rows + (size_t)from * PACK_QUADS + q);
        __syncthreads();
        for (int j = from; j < from + cached; j++) {
            Row row{cache + (j - from) * PACK_QUADS, 0, {}};
            const float constant = row.next();
            float centred[EVENTS_PER_THREAD][N_CHANNELS], l[EVENTS_PER_THREAD] = {};
            if (add_stages<0>(row, constant, x, low, centred, l, done)) {
#pragma unroll
                for (int e = 0; e < EVENTS_PER_THREAD; e++) {
                    l[e] = constant - l[e];
                    low[e] = fmaxf(low[e], l[e] - (SILENT + MARGIN));  // for the components after j
                }
                add_weights(l, bin, sums);
                if (lane == 0) kept[j / 32] |= 1u << (j % 32);
            }
            if (j + 1 < tile_end) continue;
#pragma unroll
            for (int e = 0; e < EVENTS_PER_THREAD; e++) partial[e][j / tile_size] = sums[e];
            tile_end += tile_size;
        }
    }
    if (lane == 0) atomicAdd(work + blockIdx.y, (unsigned long long)done);

    // 3. The tile of each event's label.
    each += (size_t)blockIdx.y * CHUNK;
    first_event += (unsigned long long)chunks[blockIdx.y] * CHUNK;
    const Draw draw{events,      exact,  n_components,           weight_floor, {seed, chain, iteration},
                    first_event, labels, far_counts + blockIdx.y};
    Choice* own_choices = choices + warp * 32 * EVENTS_PER_THREAD + lane;
#pragma unroll
    for (int e = 0; e < EVENTS_PER_THREAD; e++) {
        own_choices[32 * e].tile = -1;
        if (first + 32 * e >= count) continue;
        const int place = order[first + 32 * e];
        each[place] = choose(draw, place, sums[e], partial[e], n_tiles, own_choices[32 * e]);
    }
    __syncwarp();

    // 4. The label within its tile: for each 32 events, one tile after another.
#pragma unroll 1
    for (int e = 0; e < EVENTS_PER_THREAD; e++) {
        const Choice c = own_choices[32 * e];
        const int place = order[min(first + 32 * e, count - 1)];
        float own[1][N_CHANNELS];
        load_events(events, place, 0, count, own);
        for (unsigned left = __ballot_sync(ALL, c.tile >= 0); left != 0;) {
            const int t = __shfl_sync(ALL, c.tile, __ffs((int)left) - 1);
            const int end = min((t + 1) * tile_size, n_components);
            int label = pick_kept(own, rows, kept, t * tile_size, end, bin, c, c.before);
            const bool mine = c.tile == t;
            // If uniform * total was rounded to the total, the last tile may have no weight.
            if (__any_sync(ALL, mine && label < 0)) {
                const int other = pick_kept(own, rows, kept, 0, n_components, bin, c, 0.0f);
                if (label < 0) label = other;
            }
            if (mine) labels[place] = (unsigned short)label;
            left &= ~__ballot_sync(ALL, mine);
        }
    }
}
