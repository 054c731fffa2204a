#include "vecchia.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "parallel.hpp"

namespace dpmix {
namespace {

constexpr int SIZE = MAX_NEIGHBOURS + 1;
constexpr int VARIANCE = 0, RANGE = 1, NUGGET = 2;
constexpr std::size_t POINTS_PER_TASK = 256;

struct Value {
    double rho, slope;  // correlation, and its derivative with respect to log range
};

Value correlation(Correlation kind, double distance) {
    switch (kind) {
        case Correlation::MATERN_12: {
            const double decay = std::exp(-distance);
            return {decay, distance * decay};
        }
        case Correlation::MATERN_32: {
            const double a = std::sqrt(3.0) * distance, decay = std::exp(-a);
            return {(1.0 + a) * decay, a * a * decay};
        }
        case Correlation::MATERN_52: {
            const double a = std::sqrt(5.0) * distance, decay = std::exp(-a), third = a * a / 3.0;
            return {(1.0 + a + third) * decay, third * (1.0 + a) * decay};
        }
        default: {
            const double square = distance * distance, decay = std::exp(-0.5 * square);
            return {decay, square * decay};
        }
    }
}

// The system of one point: its neighbours, then the point itself. Matrices are stored by columns, of which
// the lower triangle is used.
struct System {
    int size;
    double cov[SIZE][SIZE], slope[SIZE][SIZE];
    double noise[SIZE], y[SIZE], one[SIZE];

    System(const VecchiaInput& in, std::size_t point) : size(0) {
        std::int32_t places[SIZE];
        const std::int32_t* own = in.neighbours + point * static_cast<std::size_t>(in.m);
        while (size < in.m && own[size] >= 0) {
            places[size] = own[size];
            size++;
        }
        places[size++] = static_cast<std::int32_t>(point);
        for (int j = 0; j < size; j++) {
            noise[j] = in.nugget + in.known[places[j]];
            y[j] = in.values[places[j]];
            one[j] = 1.0;
            for (int i = j; i < size; i++) {
                const double distance = std::fabs(in.times[places[i]] - in.times[places[j]]) / in.range;
                const Value value = correlation(in.correlation, distance);
                cov[j][i] = in.variance * value.rho + (i == j ? noise[j] : 0.0);
                slope[j][i] = in.variance * value.slope;
            }
        }
    }

    // Replaces cov by its lower Cholesky factor; false if it is not positive definite.
    bool factor() {
        for (int k = 0; k < size; k++) {
            if (!(cov[k][k] > 0.0)) return false;
            const double pivot = std::sqrt(cov[k][k]);
            for (int i = k; i < size; i++) cov[k][i] /= pivot;
            for (int j = k + 1; j < size; j++) {
                const double own = cov[k][j];
                for (int i = j; i < size; i++) cov[j][i] -= own * cov[k][i];
            }
        }
        return true;
    }

    // x = L^-1 x
    void solve(double* x) const {
        for (int k = 0; k < size; k++) {
            x[k] /= cov[k][k];
            const double own = x[k];
            for (int i = k + 1; i < size; i++) x[i] -= cov[k][i] * own;
        }
    }

    // x = L^-T e, with e the last unit vector
    void solve_last(double* x) const {
        for (int k = size - 1; k >= 0; k--) {
            double sum = k == size - 1 ? 1.0 : 0.0;
            for (int i = k + 1; i < size; i++) sum -= cov[k][i] * x[i];
            x[k] = sum / cov[k][k];
        }
    }

    // out = slope x, with the matrix symmetric
    void times_slope(const double* x, double* out) const {
        std::fill(out, out + size, 0.0);
        for (int j = 0; j < size; j++) {
            double sum = slope[j][j] * x[j];
            for (int i = j + 1; i < size; i++) {
                out[i] += slope[j][i] * x[j];
                sum += slope[j][i] * x[i];
            }
            out[j] += sum;
        }
    }
};

double dot(const double* a, const double* b, int size) {
    double sum = 0.0;
    for (int i = 0; i < size; i++) sum += a[i] * b[i];
    return sum;
}

// Adds one point. With D = L^-1 (dA) L^-T for the covariance A of the system, only the last column of D is
// needed: the leading block belongs to the density of the neighbours, which is divided out.
void add_point(const VecchiaInput& in, std::size_t point, VecchiaSums& sums) {
    System system(in, point);
    if (!system.factor()) {
        sums.log_det = std::numeric_limits<double>::quiet_NaN();
        return;
    }
    const int size = system.size, last = size - 1;
    system.solve(system.y);
    system.solve(system.one);
    const double y = system.y[last], x = system.one[last];
    sums.log_det += 2.0 * std::log(system.cov[last][last]);
    sums.yy += y * y;
    sums.xy += x * y;
    sums.xx += x * x;

    double w[SIZE], columns[3][SIZE];
    system.solve_last(w);
    for (int i = 0; i < size; i++) {
        columns[NUGGET][i] = in.nugget * w[i];
        columns[VARIANCE][i] = -system.noise[i] * w[i];
    }
    system.times_slope(w, columns[RANGE]);
    for (double* column : columns) system.solve(column);
    columns[VARIANCE][last] += 1.0;  // A w = L e, so L^-1 A w = e

    for (int p = 0; p < 3; p++) {
        const double* column = columns[p];
        const double own = column[last], with_y = dot(column, system.y, size),
                     with_one = dot(column, system.one, size);
        sums.d_log_det[p] += own;
        sums.d_yy[p] -= 2.0 * y * with_y - own * y * y;
        sums.d_xy[p] -= x * with_y + y * with_one - own * x * y;
        sums.d_xx[p] -= 2.0 * x * with_one - own * x * x;
        for (int q = 0; q <= p; q++)
            sums.information[p][q] += dot(column, columns[q], size) - 0.5 * own * columns[q][last];
    }
}

void add(VecchiaSums& to, const VecchiaSums& from) {
    to.log_det += from.log_det;
    to.yy += from.yy;
    to.xy += from.xy;
    to.xx += from.xx;
    for (int p = 0; p < 3; p++) {
        to.d_log_det[p] += from.d_log_det[p];
        to.d_yy[p] += from.d_yy[p];
        to.d_xy[p] += from.d_xy[p];
        to.d_xx[p] += from.d_xx[p];
        for (int q = 0; q <= p; q++) to.information[p][q] += from.information[p][q];
    }
}

}  // namespace

void nearest_predecessors(const double* times, const std::int64_t* order, std::size_t n, int m,
                          std::int32_t* neighbours) {
    // A list of the points in order of time, from which the points leave from the last of the order to the
    // first: those still linked on both sides of a point are its predecessors.
    std::vector<std::int64_t> before(n), after(n);
    for (std::size_t i = 0; i < n; i++) {
        before[i] = static_cast<std::int64_t>(i) - 1;
        after[i] = i + 1 < n ? static_cast<std::int64_t>(i) + 1 : -1;
    }
    for (std::size_t turn = n; turn-- > 0;) {
        const std::int64_t point = order[turn];
        std::int64_t left = before[point], right = after[point];
        if (left >= 0) after[left] = right;
        if (right >= 0) before[right] = left;
        std::int32_t* own = neighbours + point * m;
        for (int k = 0; k < m; k++) {
            const bool is_left =
                left >= 0 && (right < 0 || times[point] - times[left] <= times[right] - times[point]);
            own[k] = static_cast<std::int32_t>(is_left ? left : right);  // -1: none remains
            if (is_left) left = before[left];
            else if (right >= 0) right = after[right];
        }
    }
}

VecchiaSums vecchia(const VecchiaInput& input, int threads) {
    const std::size_t n_tasks = (input.n + POINTS_PER_TASK - 1) / POINTS_PER_TASK;
    std::vector<VecchiaSums> parts(n_tasks);
    Crew crew(threads);
    crew.loop(n_tasks, [&](std::size_t task, int) {
        const std::size_t start = task * POINTS_PER_TASK, stop = std::min(start + POINTS_PER_TASK, input.n);
        for (std::size_t point = start; point < stop; point++) add_point(input, point, parts[task]);
    });
    VecchiaSums sums;
    for (const VecchiaSums& part : parts) add(sums, part);
    return sums;
}

}  // namespace dpmix
