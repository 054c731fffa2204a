// divide: assigns the events of some components to pairs of new components, and sums the log probabilities of
// these assignments. These are the restricted Gibbs scans of a split-merge move.
//
//   events             float32 [slots][CHUNK][PADDED_DIM]         read
//   components         float32 [2 * n_pairs][PACK_DIM]            read (mixture.cuh): pair p has 2p and 2p + 1
//   exact              float64 [2 * n_pairs][PACK_DIM], or null   read for far events (far.cuh)
//   split              int32 [2][n_components]                    read: the pair of a component's events, -1 for
//                                                                 none; their side, 0 or 1, -1 to draw it
//   labels             uint16 [slots][CHUNK]                      read
//   chunks             uint32 [slots]                             read: the chunk in each slot
//   weights            float32 [slots][CHUNK], or null            read; null: every event has weight 1
//   new_labels         uint16 [slots][CHUNK]                      written: 2 * pair + side; unchanged for events
//                                                                 of no pair
//   log_probabilities  float64 [slots][n_pairs][PARTS]            written: weighted sums over the events of a
//                                                                 part
//   far_counts         uint32 [slots]                             added to: far events skipped without `exact`
//
// A block scans the labels of a part of a chunk for those of its pair and lists their indices. Its threads
// then take the listed events in turn, with the pair's two rows in shared memory. There is no sorting, no
// scratch and no atomic operation whose order matters. A side's weight is relative to the better side's, and
// 0 below the floor.
//
// Launch    grid (n_pairs * PARTS, slots), block 256.
// Shared    CHUNK / PARTS * 2 (places) + 4,096 (sides) + 2 * PACK_DIM * 4 + 288 bytes: 37,952 at D = 64.
// Budget    divide, D = 14: registers 128, stack 0, shared 21,728 bytes; no spills.
//           registers by architecture: sm_75 109, sm_80 109, sm_90 119, sm_120 128.
// Measured  divide, NVIDIA H200: 0.059 ms for 1,000,000 events, 5% of the floor; limited by shared 20%.
// Limits    D 1 to 64; n_components 1 to 4,096; n_pairs 1 to 32,767.
// Equals    divide_piece of kernels/cpu/divide.hpp, except sides whose uniform is within rounding of the step.
// Source    Jain and Neal (2004), "A split-merge Markov chain Monte Carlo procedure for the Dirichlet process
//           mixture model", J. Comput. Graph. Stat. 13:158.
#include "far.cuh"
#include "moments.cuh"
#include "philox.cuh"

constexpr int PARTS = 8;  // of a chunk
constexpr int PART = CHUNK / PARTS;
// Blocks per multiprocessor. Without this bound nvcc plans for more, and spills.
constexpr int BLOCKS = PADDED_DIM <= 32 ? 2 : 1;
constexpr signed char ELSEWHERE = -2;  // the side of events of other pairs

// The side drawn from two weights, or `given` if that is not -1.
template <class Real>
__device__ __forceinline__ int side_of(int given, Real first, Real second, float uniform) {
    if (given >= 0) return given;
    return second > 0 && first <= uniform * (first + second);
}

struct FarSide {
    double log_probability;
    int side;
};

// The side of a far event, in float64.
__device__ __noinline__ FarSide far_side(const float* event, const double* exact, float floor, int given,
                                         float uniform) {
    const FarTotal far = far_total(event, exact, 2, floor);
    const double first = exact_weight(exact_log_density(event, exact) - far.best, floor);
    const double second = exact_weight(exact_log_density(event, exact + PACK_DIM) - far.best, floor);
    const int side = side_of(given, first, second, uniform);
    return {log((side ? second : first) / far.total), side};
}

extern "C" __global__ void __launch_bounds__(MOMENT_THREADS, BLOCKS)
    divide(const float* __restrict__ events, const float* __restrict__ components,
           const double* __restrict__ exact, const int* __restrict__ split,
           const unsigned short* __restrict__ labels, const unsigned* __restrict__ chunks,
           const float* __restrict__ weights, unsigned long long n_events, unsigned long long first_event,
           int n_components, float weight_floor, unsigned long long seed, unsigned chain, unsigned iteration,
           int word, unsigned short* __restrict__ new_labels, double* __restrict__ log_probabilities,
           unsigned* __restrict__ far_counts) {
    __shared__ float4 rows[2 * PACK_QUADS];
    __shared__ signed char sides[MAX_COMPONENTS];  // side of each component's events
    __shared__ unsigned short places[PART];
    __shared__ int of_warps[MOMENT_WARPS];
    const int pair = blockIdx.x / PARTS, part = blockIdx.x % PARTS * PART;
    const int end = min(part + PART, events_in(chunks, n_events));
    events += (size_t)blockIdx.y * CHUNK * PADDED_DIM;
    labels += (size_t)blockIdx.y * CHUNK;
    const uint4* eights = reinterpret_cast<const uint4*>(labels);
    new_labels += (size_t)blockIdx.y * CHUNK;
    first_event += (unsigned long long)chunks[blockIdx.y] * CHUNK;
    const float4* packed = reinterpret_cast<const float4*>(components) + (size_t)pair * 2 * PACK_QUADS;
    if (exact != nullptr) exact += (size_t)pair * 2 * PACK_DIM;

    // 1. The pair's events.
    for (int j = threadIdx.x; j < n_components; j += MOMENT_THREADS)
        sides[j] = __ldg(split + j) == pair ? (signed char)__ldg(split + n_components + j) : ELSEWHERE;
    for (int q = threadIdx.x; q < 2 * PACK_QUADS; q += MOMENT_THREADS) rows[q] = __ldg(packed + q);
    __syncthreads();
    int n_places = 0;
    for (int strip = part; strip < end; strip += STRIP) {
        const int first = strip + threadIdx.x * LABELS_PER_THREAD;
        unsigned mine =
            events_with(eights, first, end, [&](unsigned label) { return sides[label] != ELSEWHERE; });
        int all;
        int at = n_places + count_before(__popc(mine), of_warps, all);
        for (; mine != 0; mine &= mine - 1) places[at++] = (unsigned short)(first + __ffs((int)mine) - 1);
        n_places += all;
        __syncthreads();
    }

    // 2. Their sides.
    double sum = 0.0;
    for (int i = threadIdx.x; i < n_places; i += MOMENT_THREADS) {
        const int place = places[i];
        float x[1][N_CHANNELS], first_l = 0.0f, second_l = 0.0f;
        load_events(events, place, 0, end, x);
#pragma unroll 1  // unrolled, ptxas takes half a minute at 64 channels
        for (int side = 0; side < 2; side++) {
            float l[1];
            log_densities(x, rows + side * PACK_QUADS, l);
            first_l = second_l;
            second_l = l[0];
        }
        const float best = fmaxf(first_l, second_l);
        const float u = uniform({seed, chain, iteration}, first_event + place, word);
        int side = sides[__ldg(labels + place)];
        if (best < FAR) {
            if (exact == nullptr) {
                atomicAdd(far_counts + blockIdx.y, 1u);
                continue;
            }
            const float* event = events + (size_t)place * PADDED_DIM;
            const FarSide far = far_side(event, exact, weight_floor, side, u);
            side = far.side;
            sum += weight_at(weights, place) * far.log_probability;
        } else {
            const float first_gap = first_l - best, second_gap = second_l - best;
            const float first = first_gap > -weight_floor ? __expf(first_gap) : 0.0f;
            const float second = second_gap > -weight_floor ? __expf(second_gap) : 0.0f;
            side = side_of(side, first, second, u);
            const bool possible = (side ? second : first) > 0.0f;
            const double gap = (double)(side ? second_gap : first_gap);
            sum += possible ? weight_at(weights, place) * (gap - (double)logf(first + second)) : -INFINITY;
        }
        new_labels[place] = (unsigned short)(2 * pair + side);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) log_probabilities[(size_t)blockIdx.y * gridDim.x + blockIdx.x] = sum;
}
