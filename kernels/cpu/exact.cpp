#include "exact_add.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace dpmix {
namespace {

constexpr double NAN_ = std::numeric_limits<double>::quiet_NaN();
constexpr double INF = std::numeric_limits<double>::infinity();
constexpr int LOWEST_BIN = -32;
constexpr double HIGHEST = 0x1.8p1012;  // c of bin 32

// c of the lowest bin that reaches a nonzero x.
double lowest_reaching(double x) {
    const int bin = static_cast<int>(std::floor((std::ilogb(x) - 28) / 30.0));  // or the next
    const double c = std::ldexp(1.5, 52 + 30 * std::max(bin, LOWEST_BIN));
    return reaches(c, x) ? c : c * BIN;
}

// Makes `top` the top bin, which is not below c.
void raise(double top, double& c, double& a0, double& a1, double& a2) {
    if (c == 0.0) c = top;
    for (; c < top; c *= BIN) {
        a2 = a1;
        a1 = a0;
        a0 = 0.0;
    }
}

void add_any(double x, double& c, double& a0, double& a1, double& a2) {
    if (!reaches(HIGHEST, x)) {
        const double beyond = std::isnan(x) ? NAN_ : std::copysign(INF, x);
        const double sum = std::isnan(c) ? a0 + beyond : beyond;
        a0 = std::isnan(sum) ? NAN_ : sum;
        a1 = a2 = 0.0;
        c = NAN_;
    } else if (x != 0.0 && !std::isnan(c)) {
        if (!reaches(c, x)) raise(lowest_reaching(x), c, a0, a1, a2);
        add_slices(c, x, a0, a1, a2);
    }
}

// a + b and its rounding error.
double two_sum(double a, double b, double& error) {
    const double sum = a + b, part = sum - a;
    error = (a - (sum - part)) + (b - part);
    return sum;
}

}  // namespace

void Sums::add(std::size_t first, const double* numbers, std::size_t count) const {
    add_numbers(*this, first, numbers, count);
}

void Sums::add_each(std::size_t first, const double* numbers, std::size_t count) const {
    double* c = state + first;
    for (std::size_t i = 0; i < count; i++) add_any(numbers[i], c[i], c[n + i], c[2 * n + i], c[3 * n + i]);
}

void Sums::merge(std::size_t first, std::size_t end, const double* other) const {
    constexpr std::size_t BLOCK = 16;
    for (std::size_t start = first; start < end; start += BLOCK) {
        const std::size_t stop = std::min(start + BLOCK, end);
        bool same_tops = true;  // mostly; a NaN is unequal
        for (std::size_t i = start; i < stop; i++) same_tops &= state[i] == other[i];
        if (!same_tops) {
            merge_each(start, stop, other);
            continue;
        }
        for (std::size_t plane = n; plane < 4 * n; plane += n)
            for (std::size_t i = plane + start; i < plane + stop; i++) state[i] += other[i];
    }
}

void Sums::merge_each(std::size_t first, std::size_t end, const double* other) const {
    for (std::size_t i = first; i < end; i++) {
        double &c = state[i], &a0 = state[n + i], &a1 = state[2 * n + i], &a2 = state[3 * n + i];
        double d = other[i], b0 = other[n + i], b1 = other[2 * n + i], b2 = other[3 * n + i];
        if (std::isnan(d)) {
            add_any(b0, c, a0, a1, a2);
        } else if (!std::isnan(c) && d != 0.0) {
            const double top = std::max(c, d);
            raise(top, c, a0, a1, a2);
            raise(top, d, b0, b1, b2);
            a0 += b0;
            a1 += b1;
            a2 += b2;
        }
    }
}

void values_of(const double* state, std::size_t n, std::size_t first, std::size_t end, double* values) {
    for (std::size_t i = first; i < end; i++) {
        const double a0 = state[n + i], a1 = state[2 * n + i], a2 = state[3 * n + i];
        double high_error, low_error;
        const double low = two_sum(a1, a2, low_error), high = two_sum(a0, low, high_error);
        values[i] = std::isnan(state[i]) ? a0 : high + (high_error + low_error);
    }
}

}  // namespace dpmix
