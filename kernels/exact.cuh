// Order-free sums of float64 on a device: the method and the states of kernels/cpu/exact.hpp, operation for
// operation, so a state has the same bits wherever its numbers were added.
#pragma once

constexpr double BIN = 0x1p30;          // between the units of neighbouring bins
constexpr double HIGHEST = 0x1.8p1012;  // c of the highest bin
constexpr double REACH = 0x1p-24;       // of a bin, in units of c

// One sum: c, 1.5 * 2^52 times the unit of its top bin, and the sums of slices in that bin and the two below.
struct ExactSum {
    double c, a0, a1, a2;

    __device__ __forceinline__ bool reaches(double x) const { return fabs(x) <= c * REACH; }

    __device__ __forceinline__ void add(double x) {
        if (!reaches(x)) {
            if (!prepare(x)) return;
        }
        const double c1 = c * (1.0 / BIN), c2 = c1 * (1.0 / BIN);
        const double s0 = (x + c) - c;
        const double left = x - s0;
        const double s1 = (left + c1) - c1;
        const double s2 = ((left - s1) + c2) - c2;
        a0 += s0;
        a1 += s1;
        a2 += s2;
    }

    // The sum, rounded once.
    __device__ __forceinline__ double value() const {
        const double low = a1 + a2, low_error = error(a1, a2, low);
        const double high = a0 + low, high_error = error(a0, low, high);
        return c != c ? a0 : high + (high_error + low_error);
    }

    // The rounding error of the sum of two numbers (Knuth).
    __device__ static double error(double a, double b, double sum) {
        const double of_b = sum - a;
        return (a - (sum - of_b)) + (b - of_b);
    }

    // Raises the top bin to the lowest that reaches x. Returns false if x is not to be sliced: it is not finite
    // or beyond the highest bin, or the sum is no longer finite.
    __device__ __noinline__ bool prepare(double x) {
        if (!(fabs(x) <= HIGHEST * REACH)) {
            const double beyond = x != x ? x : copysign(INFINITY, x);
            a0 = c != c ? a0 + beyond : beyond;
            a1 = a2 = 0.0;
            c = nan("");
            return false;
        }
        if (c != c) return false;
        const double top = lowest_reaching(x);
        if (c == 0.0) c = top;
        for (; c < top; c *= BIN) {
            a2 = a1;
            a1 = a0;
            a0 = 0.0;
        }
        return true;
    }

    // c of the lowest bin that reaches a nonzero x: bin t has c = 1.5 * 2^(52 + 30 t), t from -32.
    __device__ static double lowest_reaching(double x) {
        const int bin = max((int)floor((ilogb(x) - 28) / 30.0), -32);  // or the next
        const double least = ldexp(1.5, 52 + 30 * bin);
        return fabs(x) <= least * REACH ? least : least * BIN;
    }
};
