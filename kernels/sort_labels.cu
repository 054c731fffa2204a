// count_labels, place_labels, order_events: the places of a chunk's events sorted by label, and stable. Three
// launches on one stream, in this order.
//
//   labels   uint16 [slots][CHUNK]                     read; n_components or more: in no segment of the order
//   chunks   uint32 [slots]                            read: the chunk in each slot
//   counts   uint16 [slots][SECTIONS][n_components]    events of a section with a label; then the place in the
//                                                      order of the first of them
//   starts   uint32 [slots][n_components + 1]          written: start of each component in the order
//   extras   uint32 [slots][EXTRAS]                    written: runs after the first one of a component (runs.cuh)
//   order    uint16 [slots][CHUNK]                     written: places in the chunk
//
// A warp counts and places the events of one section of the chunk, 32 at a time. Lanes with the same label find
// each other by a warp operation, so no two threads write the same number, and the order is that of the places.
//
// Launch    count_labels, order_events: grid (SECTIONS / WARPS, slots), block THREADS.
//           place_labels: grid (1, slots), block 256.
// Shared    count_labels, order_events: 32,768 bytes; place_labels: 64 bytes.
// Budget    count_labels, D = 14: registers 42, stack 0, shared 32,768 bytes; no spills.
//           registers by architecture: sm_75 40, sm_80 40, sm_90 42, sm_120 42.
// Budget    place_labels, D = 14: registers 40, stack 0, shared 64 bytes; no spills.
//           registers by architecture: sm_75 38, sm_80 32, sm_90 32, sm_120 40.
// Budget    order_events, D = 14: registers 52, stack 0, shared 32,768 bytes; no spills.
//           registers by architecture: sm_75 48, sm_80 48, sm_90 46, sm_120 52.
// Measured  count_labels, NVIDIA H200: 0.036 ms for 1,000,000 events, 1% of the floor; limited by exponential 4%.
// Measured  place_labels, NVIDIA H200: 0.020 ms for 1,000,000 events, 1% of the floor; limited by float32 4%.
// Measured  order_events, NVIDIA H200: 0.038 ms for 1,000,000 events, 3% of the floor; limited by L2 5%.
// Limits    n_components 1 to 4,096.
// Equals    sort_by_label of kernels/cpu/order.cpp with the curve 0, 1, 2, ...
#include "moments.cuh"
#include "runs.cuh"

constexpr int SECTION = 1024;  // events of a warp
constexpr int SECTIONS = CHUNK / SECTION;
constexpr unsigned ALL = 0xFFFFFFFFu;

// Calls body(place, label, peers) for the warp's events in turn; peers: the lanes whose events have the same
// label. A lane without an event to sort has label n_components and no peers but such lanes.
template <class Body>
__device__ __forceinline__ void for_each_event(const unsigned short* labels, int section, int count,
                                               int n_components, Body body) {
    for (int from = section * SECTION; from < (section + 1) * SECTION; from += 32) {
        const int place = from + threadIdx.x % 32;
        const int label = place < count ? min((int)labels[place], n_components) : n_components;
        body(place, label, __match_any_sync(ALL, label));
        __syncwarp();
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    count_labels(const unsigned short* __restrict__ labels, const unsigned* __restrict__ chunks,
                 unsigned long long n_events, int n_components, unsigned short* __restrict__ counts) {
    __shared__ unsigned short all[WARPS][MAX_COMPONENTS];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, section = blockIdx.x * WARPS + warp;
    unsigned short* own = all[warp];
    for (int j = lane; j < n_components; j += 32) own[j] = 0;
    __syncwarp();
    labels += (size_t)blockIdx.y * CHUNK;
    const int count = events_in(chunks, n_events);
    for_each_event(labels, section, count, n_components, [&](int, int label, unsigned peers) {
        if (label < n_components && lane == __ffs((int)peers) - 1) own[label] += __popc(peers);
    });
    counts += ((size_t)blockIdx.y * SECTIONS + section) * n_components;
    for (int j = lane; j < n_components; j += 32) counts[j] = own[j];
}

extern "C" __global__ void __launch_bounds__(MOMENT_THREADS)
    place_labels(int n_components, unsigned short* __restrict__ counts, unsigned* __restrict__ starts,
                 unsigned* __restrict__ extras) {
    __shared__ int of_warps[2][MOMENT_WARPS];
    counts += (size_t)blockIdx.y * SECTIONS * n_components;
    starts += (size_t)blockIdx.y * (n_components + 1);
    extras += (size_t)blockIdx.y * EXTRAS;
    for (int i = threadIdx.x; i < EXTRAS; i += MOMENT_THREADS) extras[i] = NO_RUN;
    int placed = 0, n_extras = 0;  // events and extra runs of the components before
    for (int first = 0; first < n_components; first += MOMENT_THREADS) {
        const int j = first + threadIdx.x;
        int own = 0;
        if (j < n_components) {
#pragma unroll 8
            for (int s = 0; s < SECTIONS; s++) own += counts[(size_t)s * n_components + j];
        }
        int all, all_extras;
        const int own_extras = max(own - 1, 0) / RUN;
        int start = placed + count_before(own, of_warps[0], all);
        const int extra = n_extras + count_before(own_extras, of_warps[1], all_extras);
        if (j < n_components) {
            starts[j] = (unsigned)start;
            for (int r = 0; r < own_extras; r++) extras[extra + r] = run_of(j, r + 1);
#pragma unroll 8
            for (int s = 0; s < SECTIONS; s++) {
                unsigned short& count = counts[(size_t)s * n_components + j];
                const int of_section = count;
                count = (unsigned short)start;
                start += of_section;
            }
        }
        placed += all;
        n_extras += all_extras;
        __syncthreads();
    }
    if (threadIdx.x == 0) starts[n_components] = (unsigned)placed;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    order_events(const unsigned short* __restrict__ labels, const unsigned* __restrict__ chunks,
                 unsigned long long n_events, int n_components, const unsigned short* __restrict__ counts,
                 unsigned short* __restrict__ order) {
    __shared__ unsigned short all[WARPS][MAX_COMPONENTS];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, section = blockIdx.x * WARPS + warp;
    unsigned short* next = all[warp];  // place in the order of the next event with each label
    counts += ((size_t)blockIdx.y * SECTIONS + section) * n_components;
    for (int j = lane; j < n_components; j += 32) next[j] = counts[j];
    __syncwarp();
    labels += (size_t)blockIdx.y * CHUNK;
    order += (size_t)blockIdx.y * CHUNK;
    const int count = events_in(chunks, n_events);
    for_each_event(labels, section, count, n_components, [&](int place, int label, unsigned peers) {
        const int rank = __popc(peers & ((1u << lane) - 1));
        const int at = label < n_components ? next[label] : 0;
        if (label < n_components) order[at + rank] = (unsigned short)place;
        __syncwarp();
        if (label < n_components && rank == 0) next[label] = (unsigned short)(at + __popc(peers));
    });
}
