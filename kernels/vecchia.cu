// vecchia: the sums of Vecchia's likelihood of a Gaussian process of time, its gradient and its expected
// information, in one pass. For dpmix.drift.likelihood.
//
//   times       float64 [n]            read: ascending
//   values      float64 [n]            read
//   known       float64 [n]            read: variances of the errors
//   neighbours  int32 [n][NEIGHBOURS]  read: ascending, -1 after the last one
//   sums        float64 [rows][22]     written: log det, yy, xy and xx, each with three derivatives; then the
//                                      lower triangle of the information
//
// N_CHANNELS is the number of neighbours in this file. The system of a point is the covariance of the point
// and its neighbours. Its Cholesky factor is stored by rows, with two more rows for the values and the ones.
// vecchia_threads has a thread per point, with the system in local memory. vecchia_blocks has a block per
// point, with the system in shared memory and a row per thread. vecchia_batches has a warp per point, and thus
// several points per block, which do not wait for each other. All run the same code (Team). The forms with
// _float have the system in float32; differences of times and sums over points are float64 in all.
//
// Launch    vecchia_threads: grid ceil(n / 128), block 128. vecchia_blocks: any grid, block 128; a block takes
//           the points blockIdx.x, blockIdx.x + gridDim.x, ... vecchia_batches: any grid, block 32 * BATCH; a warp
//           takes points likewise, and writes a row of sums. The forms with _float: the same.
// Global    the arrays above.
// Shared    vecchia_threads: 1,024 bytes. vecchia_blocks: the system, 2,040 bytes at D = 14, 21,440 at D = 64;
//           with _float half of it. vecchia_batches: BATCH systems.
// Local     vecchia_threads: the system, as large. The sums are in registers.
// Budget    vecchia_threads, D = 14: registers 80, stack 2272, shared 1,024 bytes; spills 48 bytes.
//           registers by architecture: sm_75 62, sm_80 56, sm_90 56, sm_120 80.
// Budget    vecchia_threads_float, D = 14: registers 72, stack 1232, shared 1,024 bytes; spills 28 bytes.
//           registers by architecture: sm_75 61, sm_80 56, sm_90 56, sm_120 72.
// Budget    vecchia_batches, D = 14: registers 108, stack 24, shared 8,160 bytes; spills 40 bytes.
//           registers by architecture: sm_75 96, sm_80 108, sm_90 96, sm_120 96.
// Budget    vecchia_batches_float, D = 14: registers 94, stack 0, shared 4,080 bytes; no spills.
//           registers by architecture: sm_75 92, sm_80 92, sm_90 94, sm_120 93.
// Budget    vecchia_blocks, D = 14: registers 96, stack 0, shared 2,040 bytes; no spills.
//           registers by architecture: sm_75 96, sm_80 96, sm_90 96, sm_120 96.
// Budget    vecchia_blocks_float, D = 14: registers 94, stack 0, shared 1,020 bytes; no spills.
//           registers by architecture: sm_75 92, sm_80 92, sm_90 94, sm_120 92.
// Measured  vecchia_threads, NVIDIA H200: 5.281 ms for 1,000,000 events, 2% of the floor; limited by float64 (model).
// Measured  vecchia_threads_float, NVIDIA H200: 2.736 ms for 1,000,000 events, 2% of the floor; limited by float32 (model).
// Measured  vecchia_batches, NVIDIA H200: 13.421 ms for 1,000,000 events, 1% of the floor; limited by float64 (model).
// Measured  vecchia_batches_float, NVIDIA H200: 12.090 ms for 1,000,000 events, 0% of the floor; limited by float32 (model).
// Measured  vecchia_blocks, NVIDIA H200: 46.362 ms for 1,000,000 events, 0% of the floor; limited by float64 (model).
// Measured  vecchia_blocks_float, NVIDIA H200: 41.441 ms for 1,000,000 events, 0% of the floor; limited by float32 (model).
// Limits    NEIGHBOURS 1 to 64; n below 2^31.
// Equals    vecchia of kernels/cpu/vecchia.cpp within rounding; with _float, within the errors of
//           docs/benchmarks/drift.md.
// Source    Guinness (2021), Gaussian process learning via Fisher scoring of Vecchia's approximation, Stat.
//           Comput. 31:25.
#include "correlation.cuh"

constexpr int NEIGHBOURS = N_CHANNELS, SIZE = NEIGHBOURS + 1, THREADS = 128, SUMS = 22;
constexpr int WARP = 32, BATCH = NEIGHBOURS <= 32 ? 4 : 2;  // more points than 2 do not fit in 48 KB

// Smallest variance of a value given the others before it in the system, as a share of its own variance. Below,
// float32 has too few digits, and the sums are NaN.
template <typename Real>
constexpr Real LEAST = sizeof(Real) == 4 ? 1.0 / 4096.0 : 0.0;

template <typename Real>
struct System {
    Real times[SIZE], noise[SIZE], w[SIZE], columns[3][SIZE];
    Real factor[(SIZE + 2) * (SIZE + 3) / 2];
    Real dots[12];  // of columns with the values, with the ones, and with each other
    __device__ Real* row(int i) { return factor + i * (i + 1) / 2; }
};

// The threads that work on one system.
template <int MEMBERS>
struct Team {
    __device__ static int first() { return MEMBERS == 1 ? 0 : threadIdx.x % MEMBERS; }
    __device__ static int step() { return MEMBERS; }
    __device__ static void wait() {
        if constexpr (MEMBERS == WARP) __syncwarp();
        if constexpr (MEMBERS == THREADS) __syncthreads();
    }
};

template <typename Real>
__device__ Real dot(const Real* a, const Real* b, int size) {
    Real sum = 0.0;
    for (int i = 0; i < size; i++) sum = std::fma(a[i], b[i], sum);
    return sum;
}

template <int MEMBERS, typename Real>
__device__ void add_point(int point, const double* times, const double* values, const double* known,
                          const int* neighbours, int kind, Real variance, Real range, Real nugget,
                          System<Real>& s, double (&sums)[SUMS]) {
    using T = Team<MEMBERS>;
    const int* own = neighbours + (size_t)point * NEIGHBOURS;
    int last = 0;
    while (last < NEIGHBOURS && own[last] >= 0) last++;
    const int size = last + 1;
    Real *y = s.row(size), *one = s.row(size + 1);
    for (int i = T::first(); i < size; i += T::step()) {
        const int place = i < last ? own[i] : point;
        s.times[i] = Real(times[place] - times[point]) / range;
        s.noise[i] = nugget + known[place];
        y[i] = values[place];
        one[i] = 1.0;
        s.w[i] = i == last ? 1.0 : 0.0;
    }
    T::wait();
    for (int i = T::first(); i < size; i += T::step()) {
        for (int j = 0; j < i; j++)
            s.row(i)[j] = variance * correlation(kind, std::fabs(s.times[i] - s.times[j]), false);
        s.row(i)[i] = variance + s.noise[i];
    }
    T::wait();
    for (int j = 0; j < size; j++) {  // L, L^-1 y and L^-1 1
        for (int i = j + T::first(); i < size + 2; i += T::step()) s.row(i)[j] -= dot(s.row(i), s.row(j), j);
        T::wait();
        const Real rest = s.row(j)[j], least = LEAST<Real> * (variance + s.noise[j]);
        const Real pivot = rest > least ? std::sqrt(rest) : Real(NAN);
        T::wait();
        for (int i = j + T::first(); i < size + 2; i += T::step())
            s.row(i)[j] = i == j ? pivot : s.row(i)[j] / pivot;
        T::wait();
    }
    for (int k = last; k >= 0; k--) {  // w = L^-T e, with e the last unit vector
        const Real w = s.w[k] / s.row(k)[k];
        T::wait();
        for (int i = T::first(); i <= k; i += T::step()) s.w[i] = i == k ? w : s.w[i] - s.row(k)[i] * w;
        T::wait();
    }
    // columns = L^-1 dA w; that of the variance by A w = L e.
    for (int i = T::first(); i < size; i += T::step()) {
        Real sum = 0.0;
        for (int j = 0; j < size; j++)
            sum = std::fma(correlation(kind, std::fabs(s.times[i] - s.times[j]), true), s.w[j], sum);
        s.columns[0][i] = -s.noise[i] * s.w[i];
        s.columns[1][i] = variance * sum;
        s.columns[2][i] = nugget * s.w[i];
    }
    T::wait();
    for (int p = T::first(); p < 3; p += T::step()) {
        Real* column = s.columns[p];
        for (int i = 0; i < size; i++) column[i] = (column[i] - dot(s.row(i), column, i)) / s.row(i)[i];
        if (p == 0) column[last] += Real(1.0);
    }
    T::wait();
    for (int d = T::first(); d < 12; d += T::step()) {
        const int e = d - 6, p = d < 6 ? d % 3 : (e > 2) + (e > 0), q = e - p * (p + 1) / 2;
        s.dots[d] = dot(s.columns[p], d < 3 ? y : d < 6 ? one : s.columns[q], size);
    }
    T::wait();
    const double b = y[last], x = one[last];
    const double plain[4] = {2.0 * std::log(s.row(last)[last]), b * b, x * b, x * x};
    for (int i = 0; i < 4; i++) sums[4 * i] += plain[i];
    for (int p = 0; p < 3; p++) {
        const double with_y = s.dots[p], with_one = s.dots[3 + p], own_last = s.columns[p][last];
        sums[1 + p] += own_last;
        sums[5 + p] += own_last * b * b - 2.0 * b * with_y;
        sums[9 + p] += own_last * x * b - x * with_y - b * with_one;
        sums[13 + p] += own_last * x * x - 2.0 * x * with_one;
        for (int q = 0; q <= p; q++) {
            const int at = p * (p + 1) / 2 + q;
            sums[16 + at] += s.dots[6 + at] - 0.5 * own_last * s.columns[q][last];
        }
    }
    T::wait();  // before the next point overwrites the system
}

#define ARGUMENTS                                                                                          \
    const double *__restrict__ times, const double *__restrict__ values, const double *__restrict__ known, \
        const int *__restrict__ neighbours, int n, int kind, double variance, double range, double nugget, \
        double *__restrict__ sums
#define GIVEN times, values, known, neighbours, n, kind, variance, range, nugget, sums

template <typename Real>
__device__ void by_threads(ARGUMENTS, double* all) {
    double own[SUMS] = {};
    System<Real> system;
    const int point = blockIdx.x * THREADS + threadIdx.x;
    if (point < n)
        add_point<1, Real>(point, times, values, known, neighbours, kind, variance, range, nugget, system,
                           own);
    for (int i = 0; i < SUMS; i++) {
        all[threadIdx.x] = own[i];
        __syncthreads();
        for (int half = THREADS / 2; half > 0; half /= 2) {
            if (threadIdx.x < half) all[threadIdx.x] += all[threadIdx.x + half];
            __syncthreads();
        }
        if (threadIdx.x == 0) sums[(size_t)blockIdx.x * SUMS + i] = all[0];
        __syncthreads();
    }
}

template <int MEMBERS, typename Real>
__device__ void by_teams(ARGUMENTS, System<Real>* systems) {
    const int teams = blockDim.x / MEMBERS, own_team = threadIdx.x / MEMBERS;
    const int first = blockIdx.x * teams + own_team;
    double own[SUMS] = {};
    for (int point = first; point < n; point += gridDim.x * teams)
        add_point<MEMBERS, Real>(point, times, values, known, neighbours, kind, variance, range, nugget,
                                 systems[own_team], own);
    if (threadIdx.x % MEMBERS != 0) return;
    for (int i = 0; i < SUMS; i++) sums[(size_t)first * SUMS + i] = own[i];
}

extern "C" __global__ void __launch_bounds__(THREADS) vecchia_threads(ARGUMENTS) {
    __shared__ double all[THREADS];
    by_threads<double>(GIVEN, all);
}

extern "C" __global__ void __launch_bounds__(THREADS) vecchia_threads_float(ARGUMENTS) {
    __shared__ double all[THREADS];
    by_threads<float>(GIVEN, all);
}

extern "C" __global__ void __launch_bounds__(THREADS) vecchia_blocks(ARGUMENTS) {
    __shared__ System<double> system;
    by_teams<THREADS, double>(GIVEN, &system);
}

extern "C" __global__ void __launch_bounds__(THREADS) vecchia_blocks_float(ARGUMENTS) {
    __shared__ System<float> system;
    by_teams<THREADS, float>(GIVEN, &system);
}

extern "C" __global__ void __launch_bounds__(WARP* BATCH) vecchia_batches(ARGUMENTS) {
    __shared__ System<double> systems[BATCH];
    by_teams<WARP, double>(GIVEN, systems);
}

extern "C" __global__ void __launch_bounds__(WARP* BATCH) vecchia_batches_float(ARGUMENTS) {
    __shared__ System<float> systems[BATCH];
    by_teams<WARP, float>(GIVEN, systems);
}
