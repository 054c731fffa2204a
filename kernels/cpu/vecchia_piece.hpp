// Vecchia's likelihood of a piece of the points (vecchia.hpp), with one point in each lane of the vectors.
//
// A system belongs to a point and its m neighbours. L is stored by rows, and two more rows have the values
// and the ones, which the factorisation turns into L^-1 y and L^-1 1. The neighbours are in order of time:
// the exponentials of Matern's functions are then products of the exponentials of the gaps, so a system needs
// 2 m exponentials and not m^2 / 2.
#pragma once

#include "simd.hpp"
#include "vecchia.hpp"

namespace dpmix {
namespace {

constexpr int LANES = W / 2;
constexpr int SYSTEM = MAX_NEIGHBOURS + 1;
constexpr int BY_VARIANCE = 0, BY_RANGE = 1, BY_NUGGET = 2;
constexpr int FACTOR_ROWS = 8;  // rows that are factored together: their sums are in registers

// Missing neighbours are far away, without a value: they add nothing. The least exponential keeps clear of
// subnormal numbers, which are slow.
constexpr double FAR_AWAY = 1e3;
constexpr double LEAST_DECAY = 1e-200;

struct Systems {
    int size;             // m + 1
    Reals times[SYSTEM];  // relative to the point, which is last, in units of the range
    Reals noise[SYSTEM];
    Reals inverse[SYSTEM];  // of the diagonal of L
    Reals factor[triangle(0, SYSTEM + 2)];
    Reals slope[triangle(0, SYSTEM)];  // derivative of the covariance with respect to log range
    Reals w[SYSTEM];                   // L^-T e, with e the last unit vector
    Reals columns[3][SYSTEM];          // L^-1 dA w for the three parameters

    Reals* row(int i) { return factor + triangle(0, i); }
};

// Loads the points [first, first + count) to the lanes; lanes without a point repeat the last one.
void load_systems(const VecchiaInput& in, std::size_t first, int count, Systems& s) {
    s.size = in.m + 1;
    const int last = in.m;
    Reals *y = s.row(s.size), *one = s.row(s.size + 1);
    for (int lane = 0; lane < LANES; lane++) {
        const std::size_t point = first + static_cast<std::size_t>(lane < count ? lane : count - 1);
        const std::int32_t* own = in.neighbours + point * static_cast<std::size_t>(in.m);
        int live = 0;
        while (live < in.m && own[live] >= 0) live++;
        const int missing = in.m - live;
        const double now = in.times[point], first_gap = live > 0 ? in.times[own[0]] - now : 0.0;
        const double start = first_gap < 0.0 ? first_gap / in.range : 0.0;
        for (int j = 0; j < missing; j++) {
            s.times[j][lane] = start - FAR_AWAY * (missing - j);
            s.noise[j][lane] = in.nugget;
            y[j][lane] = one[j][lane] = 0.0;
        }
        for (int j = missing; j <= last; j++) {
            const std::size_t place = j < last ? static_cast<std::size_t>(own[j - missing]) : point;
            s.times[j][lane] = (in.times[place] - now) / in.range;
            s.noise[j][lane] = in.nugget + in.known[place];
            y[j][lane] = in.values[place];
            one[j][lane] = 1.0;
        }
    }
}

// The correlation at a distance, in units of the range, and its derivative with respect to log range; decay
// is exp(-rate * distance), or exp(-distance^2 / 2).
template <Correlation KIND>
DPMIX_INLINE void correlate(Reals distance, Reals decay, Reals& rho, Reals& slope) {
    if constexpr (KIND == Correlation::MATERN_12) {
        rho = decay;
        slope = distance * decay;
    } else if constexpr (KIND == Correlation::MATERN_32) {
        const Reals a = splat(__builtin_sqrt(3.0)) * distance;
        rho = fma(a, decay, decay);
        slope = a * a * decay;
    } else if constexpr (KIND == Correlation::MATERN_52) {
        const Reals a = splat(__builtin_sqrt(5.0)) * distance, third = a * a * splat(1.0 / 3.0);
        rho = (splat(1.0) + a + third) * decay;
        slope = fma(third, a, third) * decay;
    } else {
        rho = decay;
        slope = distance * distance * decay;
    }
}

template <Correlation KIND>
DPMIX_INLINE Reals decay_at(Reals distance) {
    constexpr double rates[] = {-1.0, -1.7320508075688772, -2.23606797749979};
    if constexpr (KIND == Correlation::SQUARED_EXPONENTIAL)
        return exp_negative(splat(-0.5) * distance * distance);
    else return exp_negative(splat(rates[static_cast<int>(KIND)]) * distance);
}

template <Correlation KIND>
void fill_row(int i, int n, const Reals* decays, double variance, Systems& s) {
    Reals *cov = s.row(i), *slope = s.slope + triangle(0, i);
    const Reals scale = splat(variance);
    for (int j = 0; j < n; j++) {
        const Reals gap = s.times[i] - s.times[j], distance = gap < splat(0.0) ? -gap : gap;
        Reals rho, derivative;
        correlate<KIND>(distance, decays[j], rho, derivative);
        cov[j] = scale * rho;
        slope[j] = scale * derivative;
    }
    cov[n] = scale + s.noise[i];
    slope[n] = splat(0.0);
}

// Fills factor by the covariance, and slope.
template <Correlation KIND>
void fill_systems(double variance, Systems& s) {
    const int last = s.size - 1;
    Reals gaps[SYSTEM], decays[SYSTEM];
    for (int j = 0; j + 1 < last; j++) gaps[j] = decay_at<KIND>(s.times[j + 1] - s.times[j]);
    for (int i = 0; i < s.size; i++) {
        if (KIND == Correlation::SQUARED_EXPONENTIAL || i == last) {
            for (int j = 0; j < i; j++) {
                const Reals gap = s.times[i] - s.times[j];
                decays[j] = decay_at<KIND>(gap < splat(0.0) ? -gap : gap);
            }
        } else {
            Reals decay = splat(1.0);
            for (int j = i - 1; j >= 0; j--) {
                decay = decay * gaps[j];
                decay = decay > splat(LEAST_DECAY) ? decay : splat(LEAST_DECAY);
                decays[j] = decay;
            }
        }
        fill_row<KIND>(i, i, decays, variance, s);
    }
}

// Factors N rows from row `first` on. The rows above are done.
template <int N>
void factor_rows(int first, Systems& s) {
    Reals* rows[N];
    for (int r = 0; r < N; r++) rows[r] = s.row(first + r);
    const int whole = first < s.size ? first : s.size;
    for (int j = 0; j < whole; j++) {
        const Reals* own = s.row(j);
        Reals sums[N];
        DPMIX_UNROLL
        for (int r = 0; r < N; r++) sums[r] = rows[r][j];
        for (int k = 0; k < j; k++) {
            const Reals factor = -own[k];
            DPMIX_UNROLL
            for (int r = 0; r < N; r++) sums[r] = fma(rows[r][k], factor, sums[r]);
        }
        DPMIX_UNROLL
        for (int r = 0; r < N; r++) rows[r][j] = sums[r] * s.inverse[j];
    }
    for (int j = first; j < first + N && j < s.size; j++) {
        const Reals* own = s.row(j);
        for (int r = j - first; r < N; r++) {
            Reals sum = rows[r][j];
            for (int k = 0; k < j; k++) sum = fma(rows[r][k], -own[k], sum);
            if (first + r == j) {
                const Reals pivot = root(sum);
                rows[r][j] = pivot;
                s.inverse[j] = splat(1.0) / pivot;
            } else {
                rows[r][j] = sum * s.inverse[j];
            }
        }
    }
}

// Replaces the covariance by its Cholesky factor, and the two rows below it by L^-1 y and L^-1 1. A covariance
// that is not positive definite gives NaN in the last row.
void factor_systems(Systems& s) {
    static constexpr void (*of_rows[])(int, Systems&) = {factor_rows<1>, factor_rows<2>, factor_rows<3>,
                                                         factor_rows<4>, factor_rows<5>, factor_rows<6>,
                                                         factor_rows<7>, factor_rows<8>};
    const int rows = s.size + 2, blocks = (rows + FACTOR_ROWS - 1) / FACTOR_ROWS;
    for (int b = 0; b < blocks; b++) {
        const int from = rows * b / blocks, to = rows * (b + 1) / blocks;
        of_rows[to - from - 1](from, s);
    }
}

// w = L^-T e, with e the last unit vector.
void solve_last(Systems& s) {
    for (int i = 0; i < s.size; i++) s.w[i] = splat(i + 1 == s.size ? 1.0 : 0.0);
    for (int k = s.size - 1; k >= 0; k--) {
        const Reals* own = s.row(k);
        s.w[k] = s.w[k] * s.inverse[k];
        const Reals factor = -s.w[k];
        for (int i = 0; i < k; i++) s.w[i] = fma(own[i], factor, s.w[i]);
    }
}

// columns = L^-1 dA w for the derivatives dA of the covariance A. Since A w = L e, the derivative by the
// variance needs no product with A.
void solve_columns(double nugget, Systems& s) {
    Reals *variance = s.columns[BY_VARIANCE], *range = s.columns[BY_RANGE], *noise = s.columns[BY_NUGGET];
    for (int i = 0; i < s.size; i++) {
        variance[i] = -s.noise[i] * s.w[i];
        noise[i] = splat(nugget) * s.w[i];
        range[i] = splat(0.0);
    }
    for (int i = 1; i < s.size; i++) {
        const Reals *own = s.slope + triangle(0, i), w = s.w[i];
        Reals sum = splat(0.0);
        for (int j = 0; j < i; j++) {
            range[j] = fma(own[j], w, range[j]);
            sum = fma(own[j], s.w[j], sum);
        }
        range[i] = range[i] + sum;
    }
    for (int i = 0; i < s.size; i++) {
        const Reals* own = s.row(i);
        Reals a = variance[i], b = range[i], c = noise[i];
        for (int k = 0; k < i; k++) {
            const Reals factor = -own[k];
            a = fma(factor, variance[k], a);
            b = fma(factor, range[k], b);
            c = fma(factor, noise[k], c);
        }
        variance[i] = a * s.inverse[i];
        range[i] = b * s.inverse[i];
        noise[i] = c * s.inverse[i];
    }
    variance[s.size - 1] = variance[s.size - 1] + splat(1.0);
}

DPMIX_INLINE Reals dot(const Reals* a, const Reals* b, int size) {
    Reals sum = splat(0.0);
    for (int i = 0; i < size; i++) sum = fma(a[i], b[i], sum);
    return sum;
}

// Adds the points of the lanes. With D = L^-1 (dA) L^-T, only the last column of D is needed: the leading
// block belongs to the density of the neighbours, which is divided out.
void add_systems(int count, Systems& s, VecchiaSums& sums) {
    const int last = s.size - 1;
    const Reals *ys = s.row(s.size), *ones = s.row(s.size + 1), y = ys[last], x = ones[last];
    Reals own[3], d_yy[3], d_xy[3], d_xx[3], information[3][3];
    for (int p = 0; p < 3; p++) {
        const Reals* column = s.columns[p];
        const Reals with_y = dot(column, ys, s.size), with_one = dot(column, ones, s.size);
        own[p] = column[last];
        d_yy[p] = -(y + y) * with_y + own[p] * y * y;
        d_xy[p] = -x * with_y - y * with_one + own[p] * x * y;
        d_xx[p] = -(x + x) * with_one + own[p] * x * x;
        for (int q = 0; q <= p; q++)
            information[p][q] = dot(column, s.columns[q], s.size) - splat(0.5) * own[p] * s.columns[q][last];
    }
    const Reals pivots = s.row(last)[last], yy = y * y, xy = x * y, xx = x * x;
    for (int lane = 0; lane < count; lane++) {  // in the order of the points, for any number of lanes
        sums.log_det += 2.0 * __builtin_log(pivots[lane]);
        sums.yy += yy[lane];
        sums.xy += xy[lane];
        sums.xx += xx[lane];
        for (int p = 0; p < 3; p++) {
            sums.d_log_det[p] += own[p][lane];
            sums.d_yy[p] += d_yy[p][lane];
            sums.d_xy[p] += d_xy[p][lane];
            sums.d_xx[p] += d_xx[p][lane];
            for (int q = 0; q <= p; q++) sums.information[p][q] += information[p][q][lane];
        }
    }
}

void vecchia_piece(const VecchiaInput& in, std::size_t first, std::size_t end, VecchiaSums& sums) {
    Systems systems;
    for (std::size_t point = first; point < end; point += LANES) {
        const int count = end - point < LANES ? static_cast<int>(end - point) : LANES;
        load_systems(in, point, count, systems);
        switch (in.correlation) {
            case Correlation::MATERN_12: fill_systems<Correlation::MATERN_12>(in.variance, systems); break;
            case Correlation::MATERN_32: fill_systems<Correlation::MATERN_32>(in.variance, systems); break;
            case Correlation::MATERN_52: fill_systems<Correlation::MATERN_52>(in.variance, systems); break;
            default: fill_systems<Correlation::SQUARED_EXPONENTIAL>(in.variance, systems);
        }
        factor_systems(systems);
        solve_last(systems);
        solve_columns(in.nugget, systems);
        add_systems(count, systems, sums);
    }
}

}  // namespace
}  // namespace dpmix
