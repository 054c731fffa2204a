// expect_totals, expect_moments: the E step of Bayesian EM and its statistics. Both kernels evaluate all
// components, so no responsibility is stored.
//
//   events           float32 [slots][CHUNK][PADDED_DIM]          read
//   components       float32 [n_components][PACK_DIM]            read (mixture.cuh)
//   exact            float64 [n_components][PACK_DIM], or null   read for far events (far.cuh)
//   chunks           uint32 [slots]                              read: the chunk in each slot
//   weights          float32 [slots][CHUNK], or null             read; null: every event has weight 1
//   normalisers      float2 [slots][CHUNK]                       largest log density; log of the sum of weights
//   labels           uint16 [slots][CHUNK]                       the most probable component
//   log_likelihoods  float64 [slots][CHUNK / EVENTS_PER_BLOCK]   written: weighted sums over the events of a
//                                                                block
//   far_counts       uint32 [slots]                              added to: far events skipped without `exact`
//   moments          float64 [slots][n_components][N_MOMENTS]    written (moments.cuh)
//
// expect_totals writes normalisers and labels, and expect_moments reads them: a responsibility is
// exp(l - largest - log sum). For a far event, the largest is evaluated again in float64 from its label.
//
// A block of expect_moments has JOINT components and a chunk. It loads EVENTS_PER_BLOCK events at a time, once for
// all of these components, and evaluates them as expect_totals does. Events with a responsibility above 0 go into
// the component's queue in the order of the chunk; the sums of each GROUP of them are added (moments.cuh).
//
// Launch    expect_totals: grid (CHUNK / EVENTS_PER_BLOCK, slots), block THREADS.
//           expect_moments: grid (ceil(n_components / JOINT), slots), block THREADS.
// Shared    expect_totals: CACHED * PACK_DIM * 4 + 256 bytes: 34,624 at D = 64.
//           expect_moments: JOINT * (PACK_DIM * 4 + EVENTS_PER_BLOCK * 16 + N_MOMENTS * 8) and less: 44,712 at D = 64.
// Budget    expect_totals, D = 14: registers 166, stack 0, shared 7,936 bytes; no spills.
//           registers by architecture: sm_75 160, sm_80 160, sm_90 166, sm_120 158.
// Budget    expect_moments, D = 14: registers 192, stack 0, shared 42,848 bytes; no spills.
//           registers by architecture: sm_75 192, sm_80 186, sm_90 163, sm_120 189.
// Measured  expect_totals, NVIDIA H200: 1.663 ms for 1,000,000 events, 63% of the floor; limited by float32 69%.
// Measured  expect_moments, NVIDIA H200: 4.217 ms for 1,000,000 events, 25% of the floor; limited by shared 34%.
// Limits    D 1 to 64; n_components 1 to 65,536.
// Equals    Engine::expect_labels of kernels/cpu/pass_expect.cpp, within float32 rounding.
// Source    Suchard et al. (2010), section 3.2 and Appendix A.
#include "far.cuh"
#include "mixture.cuh"
#include "moments.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    expect_totals(const float* __restrict__ events, const float* __restrict__ components,
                  const double* __restrict__ exact, const unsigned* __restrict__ chunks,
                  const float* __restrict__ weights, unsigned long long n_events, int n_components,
                  float weight_floor, float2* __restrict__ normalisers, unsigned short* __restrict__ labels,
                  double* __restrict__ log_likelihoods, unsigned* __restrict__ far_counts) {
    __shared__ float4 cache[CACHED * PACK_QUADS];
    const int block_first = blockIdx.x * EVENTS_PER_BLOCK;
    double* log_likelihood = log_likelihoods + (size_t)blockIdx.y * gridDim.x + blockIdx.x;
    const int count = events_for_block(chunks, n_events, log_likelihood);
    if (count == 0) return;
    events += (size_t)blockIdx.y * CHUNK * PADDED_DIM;
    normalisers += (size_t)blockIdx.y * CHUNK;
    labels += (size_t)blockIdx.y * CHUNK;

    const int first = block_first + threadIdx.x;
    float x[EVENTS_PER_THREAD][N_CHANNELS], best[EVENTS_PER_THREAD], total[EVENTS_PER_THREAD] = {};
    int label[EVENTS_PER_THREAD] = {};
    load_events(events, first, THREADS, count, x);
    fill(best, LOWEST);
    for_each_component(x, components, n_components, cache, [&](int j, const float (&l)[EVENTS_PER_THREAD]) {
#pragma unroll
        for (int e = 0; e < EVENTS_PER_THREAD; e++) {
            if (l[e] > best[e]) label[e] = j;
            add_weight(l[e], weight_floor, best[e], total[e]);
        }
    });
    double sum = 0.0;
#pragma unroll
    for (int e = 0; e < EVENTS_PER_THREAD; e++) {
        const int place = first + e * THREADS;
        if (place >= count) continue;
        float log_total = logf(total[e]);
        double highest = best[e];
        if (best[e] < FAR) {
            if (exact == nullptr) {
                atomicAdd(far_counts + blockIdx.y, 1u);
            } else {
                const FarTotal far =
                    far_total(events + (size_t)place * PADDED_DIM, exact, n_components, weight_floor);
                log_total = (float)log(far.total);
                highest = far.best;
                label[e] = far.label;
            }
        }
        normalisers[place] = make_float2(best[e], log_total);
        labels[place] = (unsigned short)label[e];
        sum += weight_at(weights, place) * (highest + (double)log_total);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) *log_likelihood = sum;
}

// Components of a block of expect_moments, and the room of a queue: what is left of a group and a strip.
constexpr int JOINT = PADDED_DIM <= 16 ? 4 : PADDED_DIM <= 32 ? 2 : 1;
constexpr int CAPACITY = 2 * EVENTS_PER_BLOCK;

// The share of a component in an event, given its log density and the normaliser of the event.
__device__ __forceinline__ float share_of(float l, float2 normaliser, const float* event, const double* exact,
                                          int component, const unsigned short* label, float weight_floor) {
    float gap = l - normaliser.x;
    if (normaliser.x < FAR) {
        if (exact == nullptr) return 0.0f;
        const double highest = exact_log_density(event, exact + (size_t)*label * PACK_DIM);
        gap = (float)(exact_log_density(event, exact + (size_t)component * PACK_DIM) - highest);
    }
    return gap > -weight_floor ? __expf(gap - normaliser.y) : 0.0f;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    expect_moments(const float* __restrict__ events, const float* __restrict__ components,
                   const double* __restrict__ exact, const unsigned* __restrict__ chunks,
                   const float* __restrict__ weights, unsigned long long n_events, int n_components,
                   float weight_floor, const float2* __restrict__ normalisers,
                   const unsigned short* __restrict__ labels, double* __restrict__ moments) {
    __shared__ float4 rows[JOINT * PACK_QUADS];
    __shared__ Queue<CAPACITY> queues[JOINT];
    __shared__ Moments sums[JOINT];
    __shared__ float z[GROUP][WIDTH];
    __shared__ float shares[JOINT][EVENTS_PER_BLOCK];
    __shared__ int counts[JOINT][EVENTS_PER_THREAD][WARPS];
    const int from = blockIdx.x * JOINT, n_joint = min(JOINT, n_components - from);
    const int count = events_in(chunks, n_events), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    events += (size_t)blockIdx.y * CHUNK * PADDED_DIM;
    normalisers += (size_t)blockIdx.y * CHUNK;
    labels += (size_t)blockIdx.y * CHUNK;
    components += (size_t)from * PACK_DIM;
    for (int q = threadIdx.x; q < n_joint * PACK_QUADS; q += THREADS)
        rows[q] = __ldg(reinterpret_cast<const float4*>(components) + q);
    for (int c = 0; c < n_joint; c++) reset(sums[c], components + c * PACK_DIM);
    __syncthreads();
    unsigned heads[JOINT] = {}, tails[JOINT] = {};  // entries taken from a queue and put into it
    for (int strip = 0; strip < count; strip += EVENTS_PER_BLOCK) {
        // 1. The shares of the strip's events.
        float x[EVENTS_PER_THREAD][N_CHANNELS];
        float2 normaliser[EVENTS_PER_THREAD];
        load_events(events, strip + threadIdx.x, THREADS, count, x);
#pragma unroll
        for (int e = 0; e < EVENTS_PER_THREAD; e++)
            normaliser[e] = __ldg(normalisers + min(strip + (int)threadIdx.x + e * THREADS, count - 1));
#pragma unroll 1
        for (int c = 0; c < n_joint; c++) {
            float l[EVENTS_PER_THREAD];
            log_densities(x, rows + c * PACK_QUADS, l);
#pragma unroll
            for (int e = 0; e < EVENTS_PER_THREAD; e++) {
                const int at = threadIdx.x + e * THREADS, place = strip + at;
                const float* event = events + (size_t)place * PADDED_DIM;
                const float share = place < count ? share_of(l[e], normaliser[e], event, exact, from + c,
                                                             labels + place, weight_floor)
                                                  : 0.0f;
                shares[c][at] = share;
                const unsigned votes = __ballot_sync(0xFFFFFFFFu, share > 0.0f);
                if (lane == 0) counts[c][e][warp] = __popc(votes);
            }
        }
        __syncthreads();
        // 2. Those above 0 go into the queues, in the order of the events.
#pragma unroll
        for (int c = 0; c < JOINT; c++) {
            if (c >= n_joint) break;
#pragma unroll 1
            for (int e = 0; e < EVENTS_PER_THREAD; e++) {
                const int own = threadIdx.x + e * THREADS;
                const float share = shares[c][own];
                const unsigned votes = __ballot_sync(0xFFFFFFFFu, share > 0.0f);
                unsigned at = tails[c] + __popc(votes & ((1u << lane) - 1));
#pragma unroll
                for (int w = 0; w < WARPS; w++) {
                    if (w < warp) at += counts[c][e][w];
                    tails[c] += counts[c][e][w];
                }
                if (share > 0.0f) {
                    queues[c].places[at % CAPACITY] = (unsigned short)(strip + own);
                    queues[c].shares[at % CAPACITY] = share * weight_at(weights, strip + own);
                }
            }
        }
        __syncthreads();
        // 3. Whole groups are added.
#pragma unroll
        for (int c = 0; c < JOINT; c++) {
            for (; tails[c] - heads[c] >= GROUP; heads[c] += GROUP)
                add_group<WARPS>(events, queues[c], heads[c], GROUP, z, sums[c]);
        }
    }
#pragma unroll
    for (int c = 0; c < JOINT; c++) {
        if (tails[c] > heads[c])
            add_group<WARPS>(events, queues[c], heads[c], (int)(tails[c] - heads[c]), z, sums[c]);
    }
    __syncthreads();
    moments += ((size_t)blockIdx.y * n_components + from) * N_MOMENTS;
    for (int i = threadIdx.x; i < n_joint * N_MOMENTS; i += THREADS)
        moments[i] = sums[i / N_MOMENTS].totals[i % N_MOMENTS];
}
