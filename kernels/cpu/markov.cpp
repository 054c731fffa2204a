#include "markov.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

namespace dpmix {
namespace {

template <int D>
using Vector = double[D];

template <int D>
using Matrix = double[D][D];

// Nodes and weights of Gauss and Legendre on [0, 1].
constexpr double NODES[] = {0.04691007703066802, 0.23076534494715845, 0.5, 0.7692346550528415,
                            0.953089922969332};
constexpr double WEIGHTS[] = {0.11846344252809454, 0.23931433524968324, 0.28444444444444444,
                              0.23931433524968324, 0.11846344252809454};
constexpr double SHORT = 0.5;  // gap, in units of 1 / rate, up to which the quadrature is exact to rounding

// The state at scaled time u = rate * t: the signal and its derivatives with respect to u, for a signal of variance 1.
// It moves by dx = F x du + noise in the last place, with (F + 1)^D = 0.
template <int D>
struct Process {
    double rate;
    double at_rest[D][D];  // covariance of the state at any time
    double power;          // of the noise

    explicit Process(double range) : rate(std::sqrt(2.0 * D - 1.0) / range) {
        if constexpr (D == 1) at_rest[0][0] = 1.0;
        if constexpr (D == 2) at_rest[0][0] = at_rest[1][1] = 1.0, at_rest[0][1] = at_rest[1][0] = 0.0;
        if constexpr (D == 3) {
            const double rows[3][3] = {{1.0, 0.0, -1.0 / 3.0}, {0.0, 1.0 / 3.0, 0.0}, {-1.0 / 3.0, 0.0, 1.0}};
            std::copy(&rows[0][0], &rows[0][0] + 9, &at_rest[0][0]);
        }
        power = D == 1 ? 2.0 : D == 2 ? 4.0 : 16.0 / 3.0;
    }

    // exp(F u)
    void transition(double u, Matrix<D>& out) const {
        const double e = std::exp(-u);
        if constexpr (D == 1) out[0][0] = e;
        if constexpr (D == 2) {
            out[0][0] = e * (1.0 + u);
            out[0][1] = e * u;
            out[1][0] = -e * u;
            out[1][1] = e * (1.0 - u);
        }
        if constexpr (D == 3) {
            const double h = 0.5 * u * u;
            const double rows[3][3] = {{1.0 + u + h, u + 2.0 * h, h},
                                       {-h, 1.0 + u - 2.0 * h, u - h},
                                       {h - u, 2.0 * h - 3.0 * u, 1.0 - 2.0 * u + h}};
            for (int i = 0; i < 3; i++)
                for (int j = 0; j < 3; j++) out[i][j] = e * rows[i][j];
        }
    }
};

// The last transition, and the covariance of what it adds. Gaps are often equal.
template <int D>
struct Step {
    const Process<D>& process;
    double gap = -1.0;
    Matrix<D> by = {}, added = {};

    explicit Step(const Process<D>& process) : process(process) {}

    void over(double new_gap) {
        if (new_gap == gap) return;
        gap = new_gap;
        const double u = gap * process.rate;
        process.transition(u, by);
        if (u > SHORT) {
            for (int i = 0; i < D; i++)
                for (int j = 0; j < D; j++) {
                    added[i][j] = process.at_rest[i][j];
                    for (int k = 0; k < D; k++)
                        for (int l = 0; l < D; l++)
                            added[i][j] -= by[i][k] * process.at_rest[k][l] * by[j][l];
                }
            return;
        }
        std::fill(&added[0][0], &added[0][0] + D * D, 0.0);  // a difference would leave no digits
        for (int node = 0; node < 5; node++) {
            Matrix<D> part;
            process.transition(u * NODES[node], part);
            const double weight = process.power * u * WEIGHTS[node];
            for (int i = 0; i < D; i++)
                for (int j = 0; j < D; j++) added[i][j] += weight * part[i][D - 1] * part[j][D - 1];
        }
    }
};

// What the pass forwards leaves for the pass backwards.
template <int D>
struct Forward {
    std::vector<double> with;  // [n][D]: covariances of state and signal, given the values before
    std::vector<double> left;  // [count][n]: values less their means, given the values before
};

// Filters (Kalman): writes the means of the signal given the values before, [count][n], and returns the log
// determinant.
template <int D>
double filter(const MarkovInput& in, double* means, Forward<D>& kept) {
    const Process<D> process(in.range);
    Step<D> step(process);
    std::vector<double> state(in.count * D, 0.0);
    Matrix<D> cov;
    for (int i = 0; i < D; i++)
        for (int j = 0; j < D; j++) cov[i][j] = in.variance * process.at_rest[i][j];
    double log_det = 0.0;
    for (std::size_t p = 0; p < in.n; p++) {
        if (p > 0) {
            step.over(in.times[p] - in.times[p - 1]);
            Matrix<D> half;
            for (int i = 0; i < D; i++)
                for (int j = 0; j < D; j++) {
                    half[i][j] = 0.0;
                    for (int k = 0; k < D; k++) half[i][j] += step.by[i][k] * cov[k][j];
                }
            for (int i = 0; i < D; i++)
                for (int j = 0; j <= i; j++) {
                    double sum = in.variance * step.added[i][j];
                    for (int k = 0; k < D; k++) sum += half[i][k] * step.by[j][k];
                    cov[i][j] = cov[j][i] = sum;
                }
        }
        double* with = kept.with.data() + p * D;
        for (int i = 0; i < D; i++) with[i] = cov[i][0];
        const double total = cov[0][0] + in.noise[p];
        if (std::isfinite(total)) log_det += std::log(total);
        for (int i = 0; i < D; i++)
            for (int j = 0; j < D; j++) cov[i][j] -= with[i] * with[j] / total;
        for (std::size_t c = 0; c < in.count; c++) {
            double* own = state.data() + c * D;
            if (p > 0) {
                Vector<D> moved;
                for (int i = 0; i < D; i++) {
                    moved[i] = 0.0;
                    for (int k = 0; k < D; k++) moved[i] += step.by[i][k] * own[k];
                }
                std::copy(moved, moved + D, own);
            }
            const double left = in.columns[c * in.n + p] - own[0];
            means[c * in.n + p] = own[0];
            kept.left[c * in.n + p] = left;
            for (int i = 0; i < D; i++) own[i] += with[i] / total * left;
        }
    }
    return log_det;
}

// Corrects means and variances by the values after each time (Durbin and Koopman 2012, Time Series Analysis by State
// Space Methods, 4.4): no covariance is inverted.
template <int D>
void smooth_backwards(const MarkovInput& in, const Forward<D>& kept, double* means, double* variances) {
    const Process<D> process(in.range);
    Step<D> step(process);
    std::vector<double> after(in.count * D, 0.0);
    Matrix<D> information = {};
    for (std::size_t p = in.n; p-- > 0;) {
        const double* with = kept.with.data() + p * D;
        const double total = with[0] + in.noise[p];
        if (p + 1 < in.n) step.over(in.times[p + 1] - in.times[p]);
        Matrix<D> half = {}, back = {};
        if (p + 1 < in.n) {
            for (int i = 0; i < D; i++)
                for (int j = 0; j < D; j++)
                    for (int k = 0; k < D; k++) half[i][j] += information[i][k] * step.by[k][j];
            for (int i = 0; i < D; i++)
                for (int j = 0; j < D; j++)
                    for (int k = 0; k < D; k++) back[i][j] += step.by[k][i] * half[k][j];
        }
        // (1 - g e')' back (1 - g e') + e e' / total, with the gain g = with / total and e the first unit vector.
        Vector<D> across;
        double both = 1.0 / total;
        for (int i = 0; i < D; i++) {
            across[i] = 0.0;
            for (int k = 0; k < D; k++) across[i] += back[i][k] * with[k] / total;
        }
        for (int i = 0; i < D; i++) both += across[i] * with[i] / total;
        for (int i = 0; i < D; i++)
            for (int j = 0; j < D; j++)
                information[i][j] = back[i][j] - (j == 0 ? across[i] : 0.0) - (i == 0 ? across[j] : 0.0) +
                                    (i == 0 && j == 0 ? both : 0.0);
        double less = 0.0;
        for (int i = 0; i < D; i++)
            for (int j = 0; j < D; j++) less += with[i] * information[i][j] * with[j];
        variances[p] = with[0] - less;
        for (std::size_t c = 0; c < in.count; c++) {
            double* own = after.data() + c * D;
            Vector<D> moved = {};
            if (p + 1 < in.n)
                for (int i = 0; i < D; i++)
                    for (int k = 0; k < D; k++) moved[i] += step.by[k][i] * own[k];
            double first = kept.left[c * in.n + p];
            for (int i = 0; i < D; i++) first -= with[i] * moved[i];
            moved[0] += first / total;
            std::copy(moved, moved + D, own);
            for (int i = 0; i < D; i++) means[c * in.n + p] += with[i] * own[i];
        }
    }
}

template <int D>
double whiten(const MarkovInput& in, double* whitened) {
    Forward<D> kept{std::vector<double>(in.n * D), std::vector<double>(in.n * in.count)};
    const double log_det = filter<D>(in, whitened, kept);
    for (std::size_t c = 0; c < in.count; c++)
        for (std::size_t p = 0; p < in.n; p++)
            whitened[c * in.n + p] = kept.left[c * in.n + p] / std::sqrt(kept.with[p * D] + in.noise[p]);
    return log_det;
}

template <int D>
void smooth(const MarkovInput& in, double* means, double* variances) {
    Forward<D> kept{std::vector<double>(in.n * D), std::vector<double>(in.n * in.count)};
    filter<D>(in, means, kept);
    smooth_backwards<D>(in, kept, means, variances);
}

}  // namespace

double whiten(const MarkovInput& in, double* whitened) {
    if (in.correlation == Correlation::MATERN_12) return whiten<1>(in, whitened);
    if (in.correlation == Correlation::MATERN_32) return whiten<2>(in, whitened);
    return whiten<3>(in, whitened);
}

void smooth(const MarkovInput& in, double* means, double* variances) {
    if (in.correlation == Correlation::MATERN_12) return smooth<1>(in, means, variances);
    if (in.correlation == Correlation::MATERN_32) return smooth<2>(in, means, variances);
    smooth<3>(in, means, variances);
}

}  // namespace dpmix
