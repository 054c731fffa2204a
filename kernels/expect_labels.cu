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
// Launch    expect_totals: grid (CHUNK / EVENTS_PER_BLOCK, slots), block THREADS.
//           expect_moments: grid (n_components, slots), block 256; a thread takes one event of a strip.
// Shared    expect_totals: CACHED * PACK_DIM * 4 + 256 bytes: 34,624 at D = 64.
//           expect_moments: PACK_DIM * 4 + 3,072 (queue) + 64 * (D + 1) * 4 + D * 4 + 32: 28,592 at D = 64.
// Budget    expect_totals, D = 14: registers 166, stack 0, shared 7,936 bytes; no spills.
//           registers by architecture: sm_75 160, sm_80 160, sm_90 166, sm_120 158.
// Budget    expect_moments, D = 14: registers 74, stack 0, shared 7,480 bytes; no spills.
//           registers by architecture: sm_75 74, sm_80 63, sm_90 64, sm_120 56.
// Measured  expect_totals: not measured.
// Measured  expect_moments: not measured.
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

constexpr int CAPACITY = 2 * MOMENT_THREADS;

extern "C" __global__ void __launch_bounds__(MOMENT_THREADS)
    expect_moments(const float* __restrict__ events, const float* __restrict__ components,
                   const double* __restrict__ exact, const unsigned* __restrict__ chunks,
                   const float* __restrict__ weights, unsigned long long n_events, int n_components,
                   float weight_floor, const float2* __restrict__ normalisers,
                   const unsigned short* __restrict__ labels, double* __restrict__ moments) {
    __shared__ float4 row[PACK_QUADS];
    __shared__ Queue<CAPACITY> queue;
    __shared__ MomentScratch scratch;
    const int component = blockIdx.x, count = events_in(chunks, n_events);
    events += (size_t)blockIdx.y * CHUNK * PADDED_DIM;
    normalisers += (size_t)blockIdx.y * CHUNK;
    labels += (size_t)blockIdx.y * CHUNK;
    const float4* packed = reinterpret_cast<const float4*>(components) + (size_t)component * PACK_QUADS;
    for (int q = threadIdx.x; q < PACK_QUADS; q += MOMENT_THREADS) row[q] = __ldg(packed + q);
    load_means(components + (size_t)component * PACK_DIM, scratch.means);
    __syncthreads();
    Moments sums;
    unsigned head = 0, tail = 0;  // entries taken from the queue and put into it
    for (int strip = 0; strip < count; strip += MOMENT_THREADS) {
        const int place = strip + threadIdx.x;
        float x[1][N_CHANNELS], l[1], share = 0.0f;
        load_events(events, place, 0, count, x);
        log_densities(x, row, l);
        if (place < count) {
            const float2 normaliser = __ldg(normalisers + place);
            float gap = l[0] - normaliser.x;
            if (normaliser.x < FAR) {
                gap = -INFINITY;
                if (exact != nullptr) {
                    const float* event = events + (size_t)place * PADDED_DIM;
                    const double highest = exact_log_density(event, exact + (size_t)labels[place] * PACK_DIM);
                    gap = (float)(exact_log_density(event, exact + (size_t)component * PACK_DIM) - highest);
                }
            }
            if (gap > -weight_floor) share = __expf(gap - normaliser.y);
        }
        int all;
        const unsigned at = tail + count_before(share > 0.0f, scratch.of_warps, all);
        if (share > 0.0f) {
            queue.places[at % CAPACITY] = (unsigned short)place;
            queue.shares[at % CAPACITY] = share * weight_at(weights, place);
        }
        tail += all;
        __syncthreads();
        for (; tail - head >= GROUP; head += GROUP) sums.add(events, queue, head, GROUP, scratch);
    }
    if (tail > head) sums.add(events, queue, head, tail - head, scratch);
    sums.write(moments + ((size_t)blockIdx.y * n_components + component) * N_MOMENTS);
}
