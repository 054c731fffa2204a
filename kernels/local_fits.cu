// fit_designs: for each design of a local approximate Gaussian process of time (laGP), the variance and range at the
// maximum of likelihood times prior, and the prediction. For dpmix.drift.local.
//
//   times       float64 [n]        read: ascending
//   values      float64 [n]        read: without mean and trend
//   noise       float64 [n]        read: variances, above 0
//   at          float64 [P]        read: times of prediction
//   designs     int32 [P][size]    read: of local_designs.cu
//   parameters  float64 [P][2]     written: variance and range
//   weights     float64 [P][size]  written: of the design's values in the prediction
//   variances   float64 [P]        written: of the signal given the design; NaN if a covariance is singular
//
// A block has a design. For the Cholesky factor of its covariance, a warp has a row at a time. For the gradient and
// the information, a thread has a column of the inverse, and one of the inverse times the derivative. All threads
// know the same of the search. N_CHANNELS is the largest size of a design in this file.
//
// Launch    grid P, block 128.
// Global    the arrays above.
// Shared    the factor, a triangle of D + 1 rows; 11 numbers of each point. All: 2,232 bytes at D = 14, 15,048 at
//           D = 50, 22,832 at D = 64.
// Local     columns, 16 D bytes of a thread.
// Registers the search: parameters, value, step; sums while they are added.
// Budget    fit_designs, D = 14: registers 72, stack 240, shared 2,232 bytes; spills 32 bytes.
//           registers by architecture: sm_75 64, sm_80 72, sm_90 72, sm_120 72.
// Measured  fit_designs, NVIDIA H200: 57.317 ms for 65,536 events, 0% of the floor; limited by float64 (model).
// Limits    D 1 to 64; size 1 to D and to n; n and P below 2^31.
// Equals    maximum and predict of kernels/cpu/local.cpp within rounding.
// Source    Gramacy and Apley (2015), Local Gaussian process approximation for large computer experiments, J. Comput.
//           Graph. Stat. 24:561; Fisher scoring: Guinness (2021), Stat. Comput. 31:25.
#include "correlation.cuh"

constexpr int DESIGN = N_CHANNELS, THREADS = 128, WARP = 32, WARPS = THREADS / WARP, SUMS = 7;
constexpr int MAX_STEPS = 50, MAX_HALVINGS = 12;
constexpr double TOLERANCE = 1e-6, LONGEST_STEP = 2.0;  // as in kernels/cpu/local.cpp

struct Logs {
    double variance, range;
};

struct Design {
    double times[DESIGN], noise[DESIGN], values[DESIGN], diagonal[DESIGN], terms[SUMS][DESIGN];
    double factor[(DESIGN + 1) * (DESIGN + 2) / 2];  // by rows, without its diagonal; then L^-1 y
    int size, kind;
    Logs centre, sd;  // of the prior
    __device__ double* row(int i) { return factor + i * (i + 1) / 2; }
};

// Returns log likelihood plus log prior, without constants; -infinity if the covariance is singular.
__device__ double evaluate(Design& s, Logs logs) {
    const double variance = std::exp(logs.variance), range = std::exp(logs.range);
    const int own = threadIdx.x, lane = own % WARP, warp = own / WARP, size = s.size;
    __syncthreads();  // the last pivot of a singular system before is no longer in use
    for (int i = warp; i <= size; i += WARPS)
        for (int j = lane; j < min(i + 1, size); j += WARP) {
            if (i == size) s.row(i)[j] = s.values[j];
            else s.row(i)[j] = variance * correlation(s.kind, (s.times[i] - s.times[j]) / range, false);
            if (i == j) s.row(i)[j] += s.noise[i];
        }
    __syncthreads();
    for (int k = 0; k < size; k++) {
        const double rest = s.row(k)[k], pivot = std::sqrt(rest);
        if (!(rest > 0.0)) return -INFINITY;
        for (int i = k + 1 + own; i <= size; i += THREADS) s.row(i)[k] /= pivot;
        if (own == 0) s.diagonal[k] = pivot;
        __syncthreads();
        for (int i = k + 1 + warp; i <= size; i += WARPS)
            for (int j = k + 1 + lane; j < min(i + 1, size); j += WARP)
                s.row(i)[j] = std::fma(-s.row(i)[k], s.row(j)[k], s.row(i)[j]);
        __syncthreads();
    }
    if (own < size) s.terms[0][own] = std::log(s.diagonal[own]) + 0.5 * s.row(size)[own] * s.row(size)[own];
    __syncthreads();
    const double a = (logs.variance - s.centre.variance) / s.sd.variance,
                 b = (logs.range - s.centre.range) / s.sd.range;
    double value = -0.5 * (a * a + b * b);
    for (int i = 0; i < size; i++) value -= s.terms[0][i];
    return value;
}

// Two columns = L^-1 columns or, from below, L'^-1 columns.
__device__ void solve(Design& s, bool below, double (&columns)[2][DESIGN]) {
    for (int step = 0; step < s.size; step++) {
        const int i = below ? s.size - 1 - step : step;
        double a = columns[0][i], b = columns[1][i];
        for (int k = below ? i + 1 : 0; k < (below ? s.size : i); k++) {
            const double factor = below ? s.row(k)[i] : s.row(i)[k];
            a = std::fma(-factor, columns[0][k], a);
            b = std::fma(-factor, columns[1][k], b);
        }
        columns[0][i] = a / s.diagonal[i];
        columns[1][i] = b / s.diagonal[i];
    }
}

// Returns the step of Fisher scoring, and half the ascent that it promises. The system of `evaluate` at the same
// parameters is lost. The derivative of the covariance with respect to log variance is the covariance without noise.
__device__ Logs score(Design& s, Logs at, double (&columns)[2][DESIGN], double& promise) {
    const double variance = std::exp(at.variance), range = std::exp(at.range);
    double *inverse = columns[0],
           *product = columns[1];  // of inverse and derivative with respect to log range
    const int own = threadIdx.x, size = s.size;
    if (own < size) {
        for (int i = 0; i < size; i++) {
            inverse[i] = i == own ? 1.0 : 0.0;
            product[i] = variance * correlation(s.kind, std::fabs(s.times[i] - s.times[own]) / range, true);
        }
        solve(s, false, columns);
        solve(s, true, columns);
    }
    __syncthreads();  // the factor is no longer in use: the product takes its place
    for (int i = own; i < size; i++) s.row(i)[own] = product[i];
    __syncthreads();
    if (own < size) {
        double solved = 0.0, slope = 0.0, vv = 0.0, vr = 0.0, rr = 0.0;
        for (int i = 0; i < size; i++) {
            solved += inverse[i] * s.values[i];
            slope += product[i] * s.values[i];
            vv += s.noise[i] * inverse[i] * inverse[i];
            vr += s.noise[i] * inverse[i] * product[i];
            rr += i < own ? 2.0 * s.row(own)[i] * product[i] : 0.0;
        }
        const double noise = s.noise[own], share = inverse[own] * noise, diagonal = product[own];
        const double terms[SUMS] = {1.0 - share,
                                    diagonal,
                                    solved * (s.values[own] - noise * solved),
                                    solved * slope,
                                    1.0 - 2.0 * share + noise * vv,
                                    diagonal - vr,
                                    diagonal * diagonal + rr};
        for (int t = 0; t < SUMS; t++) s.terms[t][own] = terms[t];
    }
    __syncthreads();
    double sums[SUMS] = {};
    for (int i = 0; i < size; i++)
        for (int t = 0; t < SUMS; t++) sums[t] += s.terms[t][i];
    const Logs prior{1.0 / (s.sd.variance * s.sd.variance), 1.0 / (s.sd.range * s.sd.range)};
    const Logs by{0.5 * (sums[2] - sums[0]) - (at.variance - s.centre.variance) * prior.variance,
                  0.5 * (sums[3] - sums[1]) - (at.range - s.centre.range) * prior.range};
    const double vv = 0.5 * sums[4] + prior.variance, vr = 0.5 * sums[5], rr = 0.5 * sums[6] + prior.range;
    const double determinant = vv * rr - vr * vr;
    const Logs step{(rr * by.variance - vr * by.range) / determinant,
                    (vv * by.range - vr * by.variance) / determinant};
    promise = 0.5 * (step.variance * by.variance + step.range * by.range);
    const double longest = std::fmax(std::fabs(step.variance), std::fabs(step.range));
    const double shorter = longest > LONGEST_STEP ? LONGEST_STEP / longest : 1.0;
    return {step.variance * shorter, step.range * shorter};
}

// Moves to the first of some proposals that is higher, or to the highest one of a grid.
struct Best {
    Logs at;
    double value;
    __device__ bool improve(Design& s, Logs proposed) {
        const double then = evaluate(s, proposed);
        if (!(then > value)) return false;
        value = then;
        at = proposed;
        return true;
    }
};

// Returns the maximum of likelihood times prior; the system is then that of the maximum.
__device__ Logs maximum(Design& s, double (&columns)[2][DESIGN]) {
    Best best{s.centre, evaluate(s, s.centre)};
    for (int a = -2; a <= 2; a++)
        for (int b = -2; b <= 2; b++)
            best.improve(s, {s.centre.variance + a * s.sd.variance, s.centre.range + b * s.sd.range});
    evaluate(s, best.at);
    for (int step = 0, moved = 1; step < MAX_STEPS && moved; step++) {
        double promise, part = 1.0;
        const Logs from = best.at, move = score(s, from, columns, promise);
        moved = 0;
        for (int halving = 0; promise > TOLERANCE && halving < MAX_HALVINGS && !moved; halving++, part *= 0.5)
            moved = best.improve(s, {from.variance + part * move.variance, from.range + part * move.range});
    }
    if (!(evaluate(s, best.at) > -INFINITY)) best.at.variance = NAN;
    return best.at;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    fit_designs(const double* __restrict__ times, const double* __restrict__ values,
                const double* __restrict__ noise, const double* __restrict__ at,
                const int* __restrict__ designs, int kind, int size, double centre_variance,
                double centre_range, double sd_variance, double sd_range, double* __restrict__ parameters,
                double* __restrict__ weights, double* __restrict__ variances) {
    __shared__ Design s;
    double columns[2][DESIGN];
    const size_t first = (size_t)blockIdx.x * size;
    const int own = threadIdx.x;
    if (own < size) {
        const int point = designs[first + own];
        s.times[own] = times[point];
        s.noise[own] = noise[point];
        s.values[own] = values[point];
    }
    if (own == 0) {
        s.size = size;
        s.kind = kind;
        s.centre = {centre_variance, centre_range};
        s.sd = {sd_variance, sd_range};
    }
    __syncthreads();
    const Logs best = maximum(s, columns);
    const double variance = std::exp(best.variance), range = std::exp(best.range);
    if (own >= size) return;
    for (int i = 0; i < size; i++)
        columns[0][i] = columns[1][i] =
            variance * correlation(kind, std::fabs(s.times[i] - at[blockIdx.x]) / range, false);
    solve(s, false, columns);
    double left = variance;
    for (int i = 0; i < size; i++) left -= columns[0][i] * columns[0][i];
    solve(s, true, columns);
    weights[first + own] = columns[0][own];
    if (own > 0) return;
    parameters[2 * blockIdx.x] = variance;
    parameters[2 * blockIdx.x + 1] = range;
    variances[blockIdx.x] = left;
}
