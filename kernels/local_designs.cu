// grow_designs: the designs of local approximate Gaussian processes of time (laGP), by the reduction of the
// predictive variance (ALC). For dpmix.drift.local.
//
//   times       float64 [n]        read: ascending
//   noise       float64 [n]        read: variances, above 0
//   at          float64 [P]        read: times of prediction
//   parameters  float64 [P][2]     read: variance and range
//   designs     int32 [P][size]    written: points, ascending
//
// A block has a time of prediction, and a thread has one of the 256 nearest points, the candidates. A design starts
// with the nearest points. It then takes the candidate with the largest gain, the first of equal ones. A candidate's
// covariance with the prediction and its variance, both given the design so far, are updated by each new point.
// For this, a thread has its candidate's column of the Cholesky factor of the design's covariance, continued to all
// candidates; the thread of the new point shares its own. N_CHANNELS is the largest size of a design in this file.
//
// Launch    grid P, block 256.
// Global    the arrays above.
// Shared    candidates: times, noise, covariance with the prediction, variance, gain, 40 bytes of each; entries of the
//           new point; the order of the design. All: 10,472 bytes at D = 14, 10,904 at D = 50, 11,072 at D = 64.
// Local     column, 8 D bytes of a thread; all columns take 100 KB of a block at D = 50. In shared memory they would
//           leave room for two blocks on a multiprocessor of sm_90 and for none of sm_75; in registers (168) for one.
// Registers the candidate that is taken and the next of the nearest points: the same in all threads.
// Budget    grow_designs, D = 14: registers 62, stack 128, shared 10,472 bytes; spills 4 bytes.
//           registers by architecture: sm_75 62, sm_80 40, sm_90 40, sm_120 40.
// Measured  grow_designs, NVIDIA H200: 4.317 ms for 65,536 events, 4% of the floor; limited by float64 (model).
// Limits    D 1 to 64; size 1 to D and to n; n and P below 2^31.
// Equals    grow of kernels/cpu/local.cpp, but for gains that rounding puts on different sides of MORE.
// Source    Gramacy and Apley (2015), Local Gaussian process approximation for large computer experiments, J. Comput.
//           Graph. Stat. 24:561; a block per prediction, a thread per candidate: Gramacy, Niemi and Weiss (2014),
//           Massively parallel approximate Gaussian process regression, SIAM/ASA J. Uncertain. Quantif. 2:564.
#include "correlation.cuh"

constexpr int DESIGN = N_CHANNELS, CANDIDATES = 256, FIRST = 6;
constexpr int GROUP = 16;            // candidates whose gains a thread compares
constexpr double TAKEN = -1.0;       // instead of a gain
constexpr double MORE = 1.0 + 1e-9;  // as in kernels/cpu/local.cpp

struct Candidates {
    double times[CANDIDATES], noise[CANDIDATES], with[CANDIDATES], own[CANDIDATES], gains[CANDIDATES];
    double entries[DESIGN];  // of the new point
    int order[DESIGN], leaders[CANDIDATES / GROUP];
};

// Returns the first of the `count` points that are nearest to a time, the earlier one at equal distance.
__device__ int first_nearest(const double* times, int n, int count, double at) {
    int low = 0, high = n - count;
    while (low < high) {
        const int middle = low + (high - low) / 2;
        if (at - times[middle] > times[middle + count] - at) low = middle + 1;
        else high = middle;
    }
    return low;
}

// Returns the first candidate with the largest gain.
__device__ int most_gain(Candidates& s, int count) {
    const int from = threadIdx.x * GROUP;
    if (from < count) {
        int best = from;
        for (int c = from + 1; c < min(from + GROUP, count); c++)
            if (s.gains[c] > MORE * s.gains[best]) best = c;
        s.leaders[threadIdx.x] = best;
    }
    __syncthreads();
    int best = s.leaders[0];
    for (int group = 1; group * GROUP < count; group++)
        if (s.gains[s.leaders[group]] > MORE * s.gains[best]) best = s.leaders[group];
    return best;
}

extern "C" __global__ void __launch_bounds__(CANDIDATES)
    grow_designs(const double* __restrict__ times, const double* __restrict__ noise,
                 const double* __restrict__ at, const double* __restrict__ parameters, int n, int kind,
                 int size, int* __restrict__ designs) {
    __shared__ Candidates s;
    double column[DESIGN];
    const double now = at[blockIdx.x], variance = parameters[2 * blockIdx.x],
                 range = parameters[2 * blockIdx.x + 1];
    const int count = min(n, CANDIDATES), base = first_nearest(times, n, count, now), c = threadIdx.x;
    if (c < count) {
        s.times[c] = times[base + c];
        s.noise[c] = noise[base + c];
        s.with[c] = variance * correlation(kind, std::fabs(s.times[c] - now) / range, false);
        s.own[c] = variance;
        s.gains[c] = 0.0;
    }
    __syncthreads();
    int right = 0;  // the nearest points that are not taken are left - 1 or right
    while (right < count && s.times[right] < now) right++;
    int left = right;
    for (int j = 0; j < size; j++) {
        int best;
        if (j >= FIRST) best = most_gain(s, count);
        else if (left > 0 && (right == count || now - s.times[left - 1] <= s.times[right] - now))
            best = --left;
        else best = right++;
        const double inverse = 1.0 / std::sqrt(s.own[best] + s.noise[best]), with = s.with[best] * inverse;
        if (c == best) {
            for (int i = 0; i < j; i++) s.entries[i] = column[i];
            s.order[j] = best;
        }
        __syncthreads();
        if (c < count) {
            double entry = variance * correlation(kind, std::fabs(s.times[c] - s.times[best]) / range, false);
            for (int i = 0; i < j; i++) entry -= s.entries[i] * column[i];
            column[j] = entry *= inverse;
            s.with[c] -= with * entry;
            s.own[c] = std::fmax(s.own[c] - entry * entry, 0.0);
            const double gain = s.with[c] * s.with[c] / (s.own[c] + s.noise[c]);
            if (c == best) s.gains[c] = TAKEN;
            else if (s.gains[c] != TAKEN) s.gains[c] = gain >= 0.0 ? gain : 0.0;
        }
        __syncthreads();
    }
    if (c >= size) return;
    int place = 0;
    for (int j = 0; j < size; j++) place += s.order[j] < s.order[c];
    designs[(size_t)blockIdx.x * size + place] = base + s.order[c];
}
