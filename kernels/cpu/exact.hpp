// Order-free sums of float64: the bits do not depend on the order or grouping of the additions. They are
// binned sums (Demmel and Nguyen 2015, Parallel reproducible summation, IEEE Trans. Comput. 64:2060) with
// bins that do not depend on the data. So statistics of chunks may be added anywhere, in any tree.
//
// Bins have the units u_t = 2^(30 t), t = -32 .. 32. The state of a sum is (c, a0, a1, a2). c = 1.5 * 2^52
// u_t names the top bin: the lowest with |x| <= 1.5 * 2^28 u_t = 2^-24 c for every x added (0 if all were 0).
// (x + c) - c is x rounded to a multiple of u_t, its slice. a0 is the sum of these slices. a1 and a2 are the
// sums of the slices of the remainders, at u_(t-1) and u_(t-2). The rest, at most 2^-61 u_t, is dropped.
//
// A slice is at most 2^29 units, so up to 2^24 slices are added without rounding. In a bin above the top bin
// the slice of every x is 0, because x is less than half a unit. When the top rises, the a's move down. The
// a's that fall off the end are those that this top would have dropped from the start. So a state is a
// function of the numbers added, and merged states are the state of all their numbers. The error of n numbers
// is at most n max|x| 2^-59 (and n 2^-1021), plus half a unit in the last place of the value.
//
// An infinity or NaN makes c NaN, and a0 the sum of all numbers that are not finite: infinite or NaN. Numbers
// beyond 1.5 * 2^988, the top of the highest bin, count as infinite.
#pragma once

#include <cstddef>

namespace dpmix {

// n sums, by planes: c [n], a0 [n], a1 [n], a2 [n]; initially all 0.
struct Sums {
    double* state;
    std::size_t n;

    // Adds one number to each of the sums first, ..., first + count - 1.
    void add(std::size_t first, const double* numbers, std::size_t count) const;

    // The same, one by one: for numbers that the top bins may not reach.
    void add_each(std::size_t first, const double* numbers, std::size_t count) const;

    // Adds n other sums to these sums; or of these, the sums first, ..., end - 1.
    void merge(const double* other) const { merge(0, n, other); }
    void merge(std::size_t first, std::size_t end, const double* other) const;

    // The same, one by one: for any top bins.
    void merge_each(std::size_t first, std::size_t end, const double* other) const;
};

// Writes the values [n] of sums; or of these, the values first, ..., end - 1.
void values_of(const double* state, std::size_t n, std::size_t first, std::size_t end, double* values);
inline void values_of(const double* state, std::size_t n, double* values) {
    values_of(state, n, 0, n, values);
}

}  // namespace dpmix
