#include "local.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "parallel.hpp"

namespace dpmix {
namespace {

constexpr int FIRST = 6;  // nearest points with which a design starts, as in laGP
constexpr int PASSES = 2;

// A candidate is taken before an earlier one if its gain is this many times as large. At regular times, gains on both
// sides of a prediction are equal, and rounding must not choose.
constexpr double MORE = 1.0 + 1e-9;
constexpr std::size_t TIMES_PER_TASK = 16;

// Of the search for the maximum: best point of a grid, in standard deviations of the prior, then Fisher
// scoring until a step promises less than the tolerance.
constexpr double GRID[] = {-2.0, -1.0, 0.0, 1.0, 2.0};
constexpr int MAX_STEPS = 50, MAX_HALVINGS = 12;
constexpr double TOLERANCE = 1e-6;    // nats
constexpr double LONGEST_STEP = 2.0;  // of a logarithm

using Matrix = double[MAX_DESIGN][MAX_DESIGN];

struct Logs {
    double variance, range;
};

// The correlation at a distance in units of the range, and its derivative with respect to log range.
template <Correlation KIND>
inline double correlation(double d) {
    if constexpr (KIND == Correlation::MATERN_12) return std::exp(-d);
    if constexpr (KIND == Correlation::MATERN_32) {
        const double a = 1.7320508075688772 * d;
        return (1.0 + a) * std::exp(-a);
    }
    if constexpr (KIND == Correlation::MATERN_52) {
        const double a = 2.23606797749979 * d;
        return (1.0 + a + a * a / 3.0) * std::exp(-a);
    }
    return std::exp(-0.5 * d * d);
}

template <Correlation KIND>
inline double slope(double d) {
    if constexpr (KIND == Correlation::MATERN_12) return d * std::exp(-d);
    if constexpr (KIND == Correlation::MATERN_32) return 3.0 * d * d * std::exp(-1.7320508075688772 * d);
    if constexpr (KIND == Correlation::MATERN_52) {
        const double a = 2.23606797749979 * d;
        return a * a / 3.0 * (1.0 + a) * std::exp(-a);
    }
    return d * d * std::exp(-0.5 * d * d);
}

// The nearest points of a time are consecutive. They are taken one by one, the earlier one at equal distance.
struct Nearest {
    const double* times;
    std::size_t n, low, high;  // taken are [low, high)
    double at;

    Nearest(const LocalInput& in, double time) : times(in.times), n(in.n), at(time) {
        low = high = static_cast<std::size_t>(std::lower_bound(times, times + n, at) - times);
    }

    std::size_t next() {
        const bool left = low > 0 && (high == n || at - times[low - 1] <= times[high] - at);
        return left ? --low : high++;
    }
};

// Writes the design of a time, ascending, by ALC.
template <Correlation KIND>
void grow(const LocalInput& in, double at, double variance, double range, std::int32_t* design) {
    Nearest nearest(in, at);
    std::size_t first[FIRST];
    const int count = in.n < MAX_CANDIDATES ? static_cast<int>(in.n) : MAX_CANDIDATES;
    for (int k = 0; k < count; k++) {
        const std::size_t point = nearest.next();
        if (k < FIRST) first[k] = point;
    }
    const std::size_t base = nearest.low;  // candidate c is point base + c
    const double *times = in.times + base, *noise = in.noise + base;
    // Given the design so far: covariance with the prediction, and variance. A row of factors has the
    // covariances with a point of the design given the earlier ones, over the standard deviation of its value.
    double with[MAX_CANDIDATES], own[MAX_CANDIDATES], factors[MAX_DESIGN][MAX_CANDIDATES];
    bool taken[MAX_CANDIDATES] = {};
    for (int c = 0; c < count; c++) {
        with[c] = variance * correlation<KIND>(std::abs(times[c] - at) / range);
        own[c] = variance;
    }
    for (int j = 0; j < in.size; j++) {
        int best = j < FIRST ? static_cast<int>(first[j] - base) : -1;
        double most = -1.0;
        for (int c = 0; j >= FIRST && c < count; c++) {
            const double gain = with[c] * with[c] / (own[c] + noise[c]);
            if (!taken[c] && gain > MORE * most) {
                most = gain;
                best = c;
            }
        }
        if (best < 0) best = static_cast<int>(std::find(taken, taken + count, false) - taken);  // all are NaN
        taken[best] = true;
        design[j] = static_cast<std::int32_t>(base) + best;
        double* row = factors[j];
        for (int c = 0; c < count; c++)
            row[c] = variance * correlation<KIND>(std::abs(times[c] - times[best]) / range);
        for (int i = 0; i < j; i++) {
            const double* earlier = factors[i];
            const double scale = earlier[best];
            for (int c = 0; c < count; c++) row[c] -= scale * earlier[c];
        }
        const double inverse = 1.0 / std::sqrt(own[best] + noise[best]), with_best = with[best] * inverse;
        for (int c = 0; c < count; c++) {
            row[c] *= inverse;
            with[c] -= with_best * row[c];
            own[c] = std::max(own[c] - row[c] * row[c], 0.0);
        }
    }
    std::sort(design, design + in.size);
}

// The covariance of a design at some parameters, and what follows from it.
struct System {
    int n;
    double times[MAX_DESIGN], noise[MAX_DESIGN], values[MAX_DESIGN];
    double white[MAX_DESIGN];  // L^-1 y
    Matrix upper;              // L', for the covariance L L'
    Matrix whitener;           // L^-1
    Matrix inverse, slopes, product;
};

void load(const LocalInput& in, const std::int32_t* design, System& s) {
    s.n = in.size;
    for (int i = 0; i < s.n; i++) {
        s.times[i] = in.times[design[i]];
        s.noise[i] = in.noise[design[i]];
        s.values[i] = in.values[design[i]];
    }
}

// white = L^-1 white.
void whiten(const System& s, double* white) {
    for (int k = 0; k < s.n; k++) {
        white[k] /= s.upper[k][k];
        const double scale = white[k];
        for (int i = k + 1; i < s.n; i++) white[i] -= scale * s.upper[k][i];
    }
}

double log_prior(const LocalInput& in, Logs at) {
    const double a = (at.variance - in.centres[0]) / in.sds[0], b = (at.range - in.centres[1]) / in.sds[1];
    return -0.5 * (a * a + b * b);
}

// Returns log likelihood plus log prior, without constants; -infinity if the covariance is singular.
template <Correlation KIND>
double evaluate(const LocalInput& in, Logs at, System& s) {
    const double variance = std::exp(at.variance), range = std::exp(at.range);
    for (int i = 0; i < s.n; i++) {
        s.upper[i][i] = variance + s.noise[i];
        for (int j = i + 1; j < s.n; j++)
            s.upper[i][j] = variance * correlation<KIND>((s.times[j] - s.times[i]) / range);
    }
    double log_det = 0.0, square = 0.0;
    for (int k = 0; k < s.n; k++) {
        if (!(s.upper[k][k] > 0.0)) return -std::numeric_limits<double>::infinity();
        const double pivot = std::sqrt(s.upper[k][k]), over = 1.0 / pivot;
        log_det += std::log(pivot);
        s.upper[k][k] = pivot;
        for (int j = k + 1; j < s.n; j++) s.upper[k][j] *= over;
        for (int i = k + 1; i < s.n; i++) {
            const double scale = s.upper[k][i];
            for (int j = i; j < s.n; j++) s.upper[i][j] -= scale * s.upper[k][j];
        }
    }
    std::copy_n(s.values, s.n, s.white);
    whiten(s, s.white);
    for (int i = 0; i < s.n; i++) square += s.white[i] * s.white[i];
    return log_prior(in, at) - log_det - 0.5 * square;
}

// Fills whitener and inverse, given upper.
void invert(System& s) {
    const int n = s.n;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) {
            s.whitener[i][j] = i == j ? 1.0 : 0.0;
            s.inverse[i][j] = 0.0;
        }
    for (int k = 0; k < n; k++) {
        const double over = 1.0 / s.upper[k][k];
        for (int j = 0; j <= k; j++) s.whitener[k][j] *= over;
        for (int i = k + 1; i < n; i++) {
            const double scale = s.upper[k][i];
            for (int j = 0; j <= k; j++) s.whitener[i][j] -= scale * s.whitener[k][j];
        }
        for (int i = 0; i <= k; i++) {
            const double scale = s.whitener[k][i];
            for (int j = 0; j <= k; j++) s.inverse[i][j] += scale * s.whitener[k][j];
        }
    }
}

struct Move {
    double variance, range, promise;  // promise: half the ascent of the quadratic model
};

// Returns the step of Fisher scoring, given the system of `evaluate` at the same parameters. The derivative
// of the covariance K with respect to log variance is K without the noise: only the derivative of log range
// takes a product.
template <Correlation KIND>
Move score(const LocalInput& in, Logs at, System& s) {
    invert(s);
    const int n = s.n;
    const double variance = std::exp(at.variance), range = std::exp(at.range);
    double solved[MAX_DESIGN] = {};
    for (int k = 0; k < n; k++)
        for (int j = 0; j <= k; j++) solved[j] += s.white[k] * s.whitener[k][j];
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++)
            s.slopes[i][j] = variance * slope<KIND>(std::abs(s.times[j] - s.times[i]) / range);
    double traces[2] = {}, squares[2] = {}, vv = 0.0, vr = 0.0, rr = 0.0;
    for (int i = 0; i < n; i++) {
        double* row = s.product[i];  // K^-1 dK / d log range
        std::fill_n(row, n, 0.0);
        for (int k = 0; k < n; k++) {
            const double scale = s.inverse[i][k];
            for (int j = 0; j < n; j++) row[j] += scale * s.slopes[k][j];
        }
    }
    for (int i = 0; i < n; i++) {
        traces[0] += 1.0 - s.inverse[i][i] * s.noise[i];
        traces[1] += s.product[i][i];
        squares[0] += solved[i] * (s.values[i] - s.noise[i] * solved[i]);
        vv += 1.0 - 2.0 * s.inverse[i][i] * s.noise[i];
        vr += s.product[i][i];
        for (int j = 0; j < n; j++) {
            squares[1] += solved[i] * s.slopes[i][j] * solved[j];
            vv += s.inverse[i][j] * s.inverse[i][j] * s.noise[i] * s.noise[j];
            vr -= s.noise[i] * s.product[i][j] * s.inverse[j][i];
            rr += s.product[i][j] * s.product[j][i];
        }
    }
    const double prior[2] = {1.0 / (in.sds[0] * in.sds[0]), 1.0 / (in.sds[1] * in.sds[1])};
    const double by_variance = 0.5 * (squares[0] - traces[0]) - (at.variance - in.centres[0]) * prior[0];
    const double by_range = 0.5 * (squares[1] - traces[1]) - (at.range - in.centres[1]) * prior[1];
    vv = 0.5 * vv + prior[0];
    vr *= 0.5;
    rr = 0.5 * rr + prior[1];
    const double determinant = vv * rr - vr * vr;
    Move move{(rr * by_variance - vr * by_range) / determinant,
              (vv * by_range - vr * by_variance) / determinant, 0.0};
    move.promise = 0.5 * (move.variance * by_variance + move.range * by_range);
    const double longest = std::max(std::abs(move.variance), std::abs(move.range));
    if (longest > LONGEST_STEP) {
        move.variance *= LONGEST_STEP / longest;
        move.range *= LONGEST_STEP / longest;
    }
    return move;
}

// Returns the maximum of likelihood times prior; the system is then evaluated at the maximum.
template <Correlation KIND>
Logs maximum(const LocalInput& in, System& s) {
    Logs best{in.centres[0], in.centres[1]};
    double value = evaluate<KIND>(in, best, s);
    for (double a : GRID)
        for (double b : GRID) {
            const Logs proposed{in.centres[0] + a * in.sds[0], in.centres[1] + b * in.sds[1]};
            const double then = evaluate<KIND>(in, proposed, s);
            if (then > value) {
                value = then;
                best = proposed;
            }
        }
    evaluate<KIND>(in, best, s);
    for (int step = 0; step < MAX_STEPS; step++) {
        Move move = score<KIND>(in, best, s);
        if (!(move.promise > TOLERANCE)) break;
        bool moved = false;
        for (int halving = 0; halving < MAX_HALVINGS && !moved; halving++) {
            const Logs proposed{best.variance + move.variance, best.range + move.range};
            const double then = evaluate<KIND>(in, proposed, s);
            if (then > value) {
                value = then;
                best = proposed;
                moved = true;
            }
            move.variance *= 0.5;
            move.range *= 0.5;
        }
        if (!moved) break;
    }
    if (!std::isfinite(evaluate<KIND>(in, best, s))) best.variance = std::numeric_limits<double>::quiet_NaN();
    return best;
}

template <Correlation KIND>
void predict(const LocalInput& in, double at, std::size_t place, const LocalOutput& out) {
    System s;
    std::int32_t* design = out.designs + place * static_cast<std::size_t>(in.size);
    double variance = std::exp(in.centres[0]), range = std::exp(in.centres[1]);
    for (int pass = 0; pass < PASSES; pass++) {
        grow<KIND>(in, at, variance, range, design);
        load(in, design, s);
        const Logs best = maximum<KIND>(in, s);
        variance = std::exp(best.variance);
        range = std::exp(best.range);
    }
    double left = variance, white[MAX_DESIGN];
    for (int i = 0; i < s.n; i++) white[i] = variance * correlation<KIND>(std::abs(s.times[i] - at) / range);
    whiten(s, white);
    for (int i = 0; i < s.n; i++) left -= white[i] * white[i];
    invert(s);
    double* weights = out.weights + place * static_cast<std::size_t>(in.size);
    std::fill_n(weights, s.n, 0.0);
    for (int k = 0; k < s.n; k++)
        for (int j = 0; j <= k; j++) weights[j] += white[k] * s.whitener[k][j];
    out.parameters[2 * place] = variance;
    out.parameters[2 * place + 1] = range;
    out.variances[place] = left;
}

}  // namespace

void predict_locally(const LocalInput& input, const double* at, std::size_t count, int threads,
                     const LocalOutput& out) {
    void (*const of_kind[])(const LocalInput&, double, std::size_t, const LocalOutput&) = {
        predict<Correlation::MATERN_12>, predict<Correlation::MATERN_32>, predict<Correlation::MATERN_52>,
        predict<Correlation::SQUARED_EXPONENTIAL>};
    const auto one = of_kind[static_cast<int>(input.correlation)];
    Crew crew(threads);
    crew.loop((count + TIMES_PER_TASK - 1) / TIMES_PER_TASK, [&](std::size_t task, int) {
        const std::size_t start = task * TIMES_PER_TASK, stop = std::min(start + TIMES_PER_TASK, count);
        for (std::size_t place = start; place < stop; place++) one(input, at[place], place, out);
    });
}

}  // namespace dpmix
