// Sums of float64 whose every bit is the same in whatever order and grouping they are added: binned sums
// (Demmel and Nguyen 2015, Parallel reproducible summation, IEEE Trans. Comput. 64:2060), with bins that do not
// depend on the data. So statistics of chunks may be added by anybody, in any tree.
//
// Bins have the units u_t = 2^(30 t), t = -32 .. 32. The state of a sum is (c, a0, a1, a2). c = 1.5 * 2^52 u_t
// names the top bin: the lowest with |x| <= 1.5 * 2^28 u_t = 2^-24 c for every x added (0 while all were 0).
// (x + c) - c is x rounded to a multiple of u_t, its slice; a0 is the sum of these, a1 and a2 those of the slices
// of what is left, at u_(t-1) and u_(t-2); the rest, at most 2^-61 u_t, is dropped.
//
// A slice is at most 2^29 units, so slices are added without rounding up to 2^24 numbers. In a bin above the top
// one the slice of every x is 0, since x is less than half a unit: when the top rises the a's move down, and what
// falls off the end is what would have been dropped had it been the top from the beginning. So a state is a
// function of the numbers added, and merged states are that of all their numbers. The error of n numbers is at
// most n max|x| 2^-59 (and n 2^-1021), and half a unit in the last place of the value.
//
// An infinity or NaN makes c NaN, and a0 the sum of all numbers that are not finite: infinite or NaN. Numbers
// beyond 1.5 * 2^988, the top of the highest bin, count as infinite.
#pragma once

#include <cstddef>

namespace dpmix {

// n sums, by planes: c [n], a0 [n], a1 [n], a2 [n]; all 0 to begin with.
struct Sums {
    double* state;
    std::size_t n;

    // Adds a number each to the sums first, ..., first + count - 1.
    void add(std::size_t first, const double* numbers, std::size_t count) const;

    // Adds n other sums.
    void merge(const double* other) const;
};

// The values [n] of sums.
void values_of(const double* state, std::size_t n, double* values);

}  // namespace dpmix
