// accumulate: counts, sums and scatters of the events by label, weighted, chunk by chunk.
//
//   events      float32 [slots][CHUNK][PADDED_DIM]         read
//   components  float32 [n_components][PACK_DIM]           read: the means are the centres
//   labels      uint16 [slots][CHUNK]                      read; n_components or more: no component
//   chunks      uint32 [slots]                             read: the chunk in each slot
//   weights     float32 [slots][CHUNK], or null            read; null: every event has weight 1
//   moments     float64 [slots][n_components][N_MOMENTS]   written (moments.cuh); 0 without events
//
// A block scans all labels of a chunk for those of its component. There is no sorting, no scratch and no
// atomic operation, and the order of all additions is that of the events. The labels cost a block 128 KiB of
// cache traffic.
//
// Launch    grid (n_components, slots), block 256.
// Shared    24,576 (queue) + 64 * (D + 1) * 4 + D * 4 + 32 bytes: 41,504 at D = 64.
// Budget    accumulate, D = 14: registers 76, stack 0, shared 28,504 bytes; no spills.
// Limits    D 1 to 64; n_components 1 to 65,536.
// Equals    Engine::add_moments of kernels/cpu/pass_draw.cpp, within float32 rounding.
// Source    Suchard et al. (2010), Appendix A, step 2.
#include "moments.cuh"

constexpr int CAPACITY = 2 * STRIP;

extern "C" __global__ void __launch_bounds__(MOMENT_THREADS)
    accumulate(const float* __restrict__ events, const float* __restrict__ components,
               const unsigned short* __restrict__ labels, const unsigned* __restrict__ chunks,
               const float* __restrict__ weights, unsigned long long n_events, int n_components,
               double* __restrict__ moments) {
    __shared__ Queue<CAPACITY> queue;
    __shared__ MomentScratch scratch;
    const int component = blockIdx.x, count = events_in(chunks, n_events);
    events += (size_t)blockIdx.y * CHUNK * PADDED_DIM;
    const uint4* eights = reinterpret_cast<const uint4*>(labels + (size_t)blockIdx.y * CHUNK);
    if (weights != nullptr) weights += (size_t)blockIdx.y * CHUNK;  // weight_at in the loop would spill
    load_means(components + (size_t)component * PACK_DIM, scratch.means);
    for (int i = threadIdx.x; i < CAPACITY; i += MOMENT_THREADS) queue.shares[i] = 1.0f;
    Moments sums;
    unsigned head = 0, tail = 0;  // entries taken from the queue and put into it
    for (int strip = 0; strip < count; strip += STRIP) {
        const int first = strip + threadIdx.x * LABELS_PER_THREAD;
        unsigned mine =
            events_with(eights, first, count, [=](unsigned label) { return label == (unsigned)component; });
        int all;
        unsigned at = tail + count_before(__popc(mine), scratch.of_warps, all);
        for (; mine != 0; mine &= mine - 1) {
            const int place = first + __ffs((int)mine) - 1;
            if (weights != nullptr) queue.shares[at % CAPACITY] = __ldg(weights + place);
            queue.places[at++ % CAPACITY] = (unsigned short)place;
        }
        tail += all;
        __syncthreads();
        for (; tail - head >= GROUP; head += GROUP) sums.add(events, queue, head, GROUP, scratch);
    }
    if (tail > head) sums.add(events, queue, head, tail - head, scratch);
    sums.write(moments + ((size_t)blockIdx.y * n_components + component) * N_MOMENTS);
}
