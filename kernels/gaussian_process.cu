// gaussian_process: adds further judgements to the posterior mean and variance of a Gaussian process at events,
// without a matrix of events and judgements. For dpmix.explore.posterior.
//
//   events   float32 [n_events][D]                            read
//   scales   float32 [D]                                      read: events are multiplied by them
//   packed   float32 [ceil(n_rows / ROWS)][n_points][PACKED]  read: for each point its channels, multiplied, to
//                                                             PADDED_DIM, and its column of ROWS rows
//   targets  float32 [ceil(n_rows / ROWS) * ROWS]             read: the whitened judgements
//   posterior float32 [2][stride]                             read and written: mean and variance
//
// The rows are the last n_rows of the inverse of the lower Cholesky factor of n_points judgements, times the
// variance of the signal; beyond the last row, packed and targets are 0. With k the correlations of an event with
// the points, v = rows k; the mean rises by v'targets and the variance falls by v'v, row by row. A block caches
// points with their columns in shared memory, and every thread uses them for its events. The correlations are
// computed again for every ROWS rows, so that nothing of an event leaves the registers; a screen of the usual 20
// judgements needs one such round. posterior_gaussian has the correlation exp(-|d|^2), posterior_laplacian
// exp(-|d|_1).
//
// Launch    grid ceil(n_events / EVENTS_PER_BLOCK), block THREADS; a thread takes EVENTS_PER_THREAD events.
// Shared    POINTS * PACKED * 4 bytes: 5,120 at D = 14; 11,264 at D = 64.
// Budget    posterior_gaussian, D = 14: registers 209, stack 0, shared 5,120 bytes; no spills.
//           registers by architecture: sm_75 198, sm_80 198, sm_90 201, sm_120 209.
// Budget    posterior_laplacian, D = 14: registers 209, stack 0, shared 5,120 bytes; no spills.
//           registers by architecture: sm_75 198, sm_80 198, sm_90 200, sm_120 209.
// Measured  posterior_gaussian, NVIDIA H200: 0.696 ms for 1,000,000 events, 54% of the floor; limited by float32 57%.
// Measured  posterior_laplacian, NVIDIA H200: 0.702 ms for 1,000,000 events, 54% of the floor; limited by float32 56%.
// Limits    D 1 to 64; n_events, n_points and n_rows below 2^31; values are finite.
// Equals    update_posterior of kernels/cpu/gaussian_process.cpp, bit for bit on processors with a fused
//           multiply-add.
// Source    Rasmussen and Williams (2006), Gaussian Processes for Machine Learning, algorithm 2.1.
#include "mixture.cuh"

constexpr int ROWS = 24, POINTS = 32;  // of a round; in shared memory
constexpr int PACKED_QUADS = (PADDED_DIM + ROWS) / 4;

// exp(x) for x <= 0, by the operations of kernels/cpu/simd.hpp.
__device__ __forceinline__ float exp_negative(float x) {
    x = fmaxf(x, -87.0f);
    const float shift = 12582912.0f;  // 1.5 * 2^23
    const float shifted = fmaf(x, 1.44269504088896f, shift), n = shifted - shift;
    const float r = fmaf(n, 2.12194440e-4f, fmaf(n, -0.693359375f, x));
    float p = 1.9875691500e-4f;
    p = fmaf(p, r, 1.3981999507e-3f);
    p = fmaf(p, r, 8.3334519073e-3f);
    p = fmaf(p, r, 4.1665795894e-2f);
    p = fmaf(p, r, 1.6666665459e-1f);
    p = fmaf(p, r, 5.0000001201e-1f);
    p = fmaf(p, r * r, r) + 1.0f;
    return __int_as_float(__float_as_int(p) + (__float_as_int(shifted) << 23));
}

// Reads the channels of a point, and writes its correlations with a thread's events.
template <bool LAPLACIAN>
__device__ __forceinline__ void correlate(Row& row, const float (&x)[EVENTS_PER_THREAD][N_CHANNELS],
                                          float (&correlations)[EVENTS_PER_THREAD]) {
    float sums[EVENTS_PER_THREAD] = {};
#pragma unroll
    for (int c = 0; c < N_CHANNELS; c++) {
        const float point = row.next();
#pragma unroll
        for (int e = 0; e < EVENTS_PER_THREAD; e++) {
            const float d = x[e][c] - point;
            sums[e] = LAPLACIAN ? sums[e] + fabsf(d) : fmaf(d, d, sums[e]);
        }
    }
#pragma unroll
    for (int e = 0; e < EVENTS_PER_THREAD; e++) correlations[e] = exp_negative(-sums[e]);
}

template <bool LAPLACIAN>
__device__ __forceinline__ void update(const float* events, const float* scales, const float* packed,
                                       const float* targets, int n_events, int n_points, int n_rows,
                                       int stride, float* posterior) {
    __shared__ float4 cache[POINTS * PACKED_QUADS];
    const float4* quads = reinterpret_cast<const float4*>(packed);
    const int first = blockIdx.x * EVENTS_PER_BLOCK + threadIdx.x;
    float x[EVENTS_PER_THREAD][N_CHANNELS], mean[EVENTS_PER_THREAD], variance[EVENTS_PER_THREAD];
#pragma unroll
    for (int e = 0; e < EVENTS_PER_THREAD; e++) {
        const int i = min(first + e * THREADS, n_events - 1);
        const float* event = events + (size_t)i * N_CHANNELS;
        mean[e] = posterior[i];
        variance[e] = posterior[stride + i];
#pragma unroll
        for (int c = 0; c < N_CHANNELS; c++) x[e][c] = __ldg(event + c) * __ldg(scales + c);
    }
    for (int top = 0; top < n_rows; top += ROWS) {
        const int last = min(n_points, n_points - n_rows + top + ROWS);  // columns; the rows are triangular
        float v[EVENTS_PER_THREAD][ROWS] = {};
        for (int from = 0; from < last; from += POINTS) {
            const int count = min(POINTS, last - from);
            __syncthreads();  // the points before are no longer in use
            for (int q = threadIdx.x; q < count * PACKED_QUADS; q += THREADS)
                cache[q] = __ldg(quads + (size_t)from * PACKED_QUADS + q);
            __syncthreads();
            for (int j = 0; j < count; j++) {
                Row row{cache + j * PACKED_QUADS, 0, {}};
                float correlations[EVENTS_PER_THREAD];
                correlate<LAPLACIAN>(row, x, correlations);
                row.at = PADDED_DIM;
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    const float weight = row.next();
#pragma unroll
                    for (int e = 0; e < EVENTS_PER_THREAD; e++)
                        v[e][r] = fmaf(weight, correlations[e], v[e][r]);
                }
            }
        }
        quads += (size_t)n_points * PACKED_QUADS;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float target = __ldg(targets + top + r);
#pragma unroll
            for (int e = 0; e < EVENTS_PER_THREAD; e++) {
                mean[e] = fmaf(target, v[e][r], mean[e]);
                variance[e] = fmaf(-v[e][r], v[e][r], variance[e]);
            }
        }
    }
#pragma unroll
    for (int e = 0; e < EVENTS_PER_THREAD; e++) {
        const int i = first + e * THREADS;
        if (i < n_events) {
            posterior[i] = mean[e];
            posterior[stride + i] = variance[e];
        }
    }
}

#define ARGUMENTS                                                                                         \
    const float *__restrict__ events, const float *__restrict__ scales, const float *__restrict__ packed, \
        const float *__restrict__ targets, int n_events, int n_points, int n_rows, int stride,            \
        float *__restrict__ posterior

extern "C" __global__ void __launch_bounds__(THREADS) posterior_gaussian(ARGUMENTS) {
    update<false>(events, scales, packed, targets, n_events, n_points, n_rows, stride, posterior);
}

extern "C" __global__ void __launch_bounds__(THREADS) posterior_laplacian(ARGUMENTS) {
    update<true>(events, scales, packed, targets, n_events, n_points, n_rows, stride, posterior);
}
