// memberships: the probability of each population for each event, and the event's log density. A population
// is a set of components. Both passes evaluate all components, so no responsibility is stored.
//
//   events             float32 [slots][CHUNK][PADDED_DIM]          read
//   components         float32 [n_components][PACK_DIM]            read (mixture.cuh), sorted by population
//   exact              float64 [n_components][PACK_DIM], or null   read for far events (far.cuh)
//   ends               int32 [n_populations]                       read: number of components up to this population
//   chunks             uint32 [slots]                              read: the chunk in each slot
//   memberships_out    float32 [slots][CHUNK][n_populations]       written; rows sum to 1
//   log_densities_out  float64 [slots][CHUNK]                     written: log sum_j pi_j N(x_i | mu_j, Sigma_j)
//   far_counts         uint32 [slots]                              added to: far events skipped without `exact`
//
// The first pass finds an event's largest log density. The second pass adds the weights relative to it. The
// components of a population are consecutive, so one sum in a register is enough; it is written to memory
// when the next population starts. Finally the event's row is divided by the total. Blocks before event
// `start` return at once, and the events end at `stop`.
//
// Launch    grid (CHUNK / EVENTS_PER_BLOCK, slots), block THREADS; a thread takes EVENTS_PER_THREAD events.
// Shared    CACHED * PACK_DIM * 4 bytes: 7,680 at D = 14; 34,368 at D = 64.
// Budget    memberships, D = 14: registers 168, stack 0, shared 7,680 bytes; no spills.
//           registers by architecture: sm_75 168, sm_80 168, sm_90 168, sm_120 158.
// Measured  memberships, NVIDIA H200: 3.453 ms for 1,000,000 events, 61% of the floor; limited by float32 65%.
// Limits    D 1 to 64; n_components and n_populations below 2^31.
// Equals    Engine::memberships of kernels/cpu/pass_memberships.cpp, within float32 rounding.
// Source    Suchard et al. (2010), Appendix A, step 1: its probabilities, summed by population.
#include "far.cuh"
#include "mixture.cuh"

// Memberships of a far event in float64; returns its log density.
__device__ __noinline__ double far_memberships(const float* event, const double* exact, int n_components,
                                               const int* ends, int n_populations, float floor, float* row) {
    const FarTotal far = far_total(event, exact, n_components, floor);
    for (int p = 0, j = 0; p < n_populations; p++) {
        double sum = 0.0;
        for (; j < ends[p]; j++)
            sum += exact_weight(exact_log_density(event, exact + (size_t)j * PACK_DIM) - far.best, floor);
        row[p] = (float)(sum / far.total);
    }
    return far.best + log(far.total);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    memberships(const float* __restrict__ events, const float* __restrict__ components,
                const double* __restrict__ exact, const int* __restrict__ ends,
                const unsigned* __restrict__ chunks, unsigned long long start, unsigned long long stop,
                int n_components, int n_populations, float weight_floor, float* __restrict__ memberships_out,
                double* __restrict__ log_densities_out, unsigned* __restrict__ far_counts) {
    __shared__ float4 cache[CACHED * PACK_QUADS];
    const int block_first = blockIdx.x * EVENTS_PER_BLOCK;
    const int count = events_in(chunks, stop);
    const unsigned long long chunk_first = (unsigned long long)chunks[blockIdx.y] * CHUNK;
    if (block_first >= count || chunk_first + block_first + EVENTS_PER_BLOCK <= start) return;
    events += (size_t)blockIdx.y * CHUNK * PADDED_DIM;
    memberships_out += (size_t)blockIdx.y * CHUNK * n_populations;
    log_densities_out += (size_t)blockIdx.y * CHUNK;

    const int first = block_first + threadIdx.x;
    float x[EVENTS_PER_THREAD][N_CHANNELS], best[EVENTS_PER_THREAD], total[EVENTS_PER_THREAD] = {};
    load_events(events, first, THREADS, count, x);
    fill(best, LOWEST);
    for_each_component(x, components, n_components, cache, [&](int, const float (&l)[EVENTS_PER_THREAD]) {
#pragma unroll
        for (int e = 0; e < EVENTS_PER_THREAD; e++) best[e] = fmaxf(best[e], l[e]);
    });

    float sum[EVENTS_PER_THREAD] = {};
    int population = 0;
    // Finishes the populations whose components all lie before `next`.
    const auto end_populations = [&](int next) {
        for (; population < n_populations && __ldg(ends + population) == next; population++) {
#pragma unroll
            for (int e = 0; e < EVENTS_PER_THREAD; e++) {
                const int place = first + e * THREADS;
                if (place < count) memberships_out[(size_t)place * n_populations + population] = sum[e];
                total[e] += sum[e];
                sum[e] = 0.0f;
            }
        }
    };
    end_populations(0);
    for_each_component(x, components, n_components, cache, [&](int j, const float (&l)[EVENTS_PER_THREAD]) {
#pragma unroll
        for (int e = 0; e < EVENTS_PER_THREAD; e++) {
            const float gap = l[e] - best[e];
            sum[e] += gap > -weight_floor ? __expf(gap) : 0.0f;
        }
        end_populations(j + 1);
    });

#pragma unroll
    for (int e = 0; e < EVENTS_PER_THREAD; e++) {
        const int place = first + e * THREADS;
        if (place >= count) continue;
        float* row = memberships_out + (size_t)place * n_populations;
        if (best[e] < FAR) {
            if (exact == nullptr) {
                atomicAdd(far_counts + blockIdx.y, 1u);
                continue;
            }
            const float* event = events + (size_t)place * PADDED_DIM;
            log_densities_out[place] =
                far_memberships(event, exact, n_components, ends, n_populations, weight_floor, row);
            continue;
        }
        for (int p = 0; p < n_populations; p++) row[p] /= total[e];
        log_densities_out[place] = (double)best[e] + (double)logf(total[e]);
    }
}
