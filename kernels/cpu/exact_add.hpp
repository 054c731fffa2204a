// The addition of numbers to sums (exact.hpp), compiled once per instruction set (sweep.cpp) and once for all
// processors (exact.cpp).
#pragma once

#include "exact.hpp"

namespace dpmix {
namespace {

constexpr double BIN = 0x1p30;
constexpr double REACH = 0x1p-24;  // of a bin, in units of c
constexpr std::size_t ROW = 128;   // sums that are checked together

inline bool reaches(double c, double x) { return __builtin_fabs(x) <= c * REACH; }

// Adds the slices of an x that c reaches.
inline void add_slices(double c, double x, double& a0, double& a1, double& a2) {
    const double c1 = c * (1.0 / BIN), c2 = c1 * (1.0 / BIN);
    const double s0 = (x + c) - c;
    const double left = x - s0;
    const double s1 = (left + c1) - c1;
    const double s2 = ((left - s1) + c2) - c2;
    a0 += s0;
    a1 += s1;
    a2 += s2;
}

// Adds one number to each of the sums first, ..., first + count - 1.
void add_numbers(const Sums& sums, std::size_t first, const double* numbers, std::size_t count) {
    for (std::size_t from = 0; from < count; from += ROW) {
        const std::size_t size = count - from < ROW ? count - from : ROW;
        const double* __restrict x = numbers + from;
        double* __restrict c = sums.state + first + from;
        double* __restrict a0 = c + sums.n;
        double* __restrict a1 = c + 2 * sums.n;
        double* __restrict a2 = c + 3 * sums.n;
        long beyond = 0;
        for (std::size_t i = 0; i < size; i++) beyond |= reaches(c[i], x[i]) ? 0 : 1;
        if (beyond) {
            sums.add_each(first + from, x, size);
        } else {
            for (std::size_t i = 0; i < size; i++) add_slices(c[i], x[i], a0[i], a1[i], a2[i]);
        }
    }
}

}  // namespace
}  // namespace dpmix
