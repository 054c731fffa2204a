// Cumulative sums of an event's weights, in which a component without weight leaves no trace.
//
// The weight of component j is 2^(t_j - R), where t_j = l_j log2(e). R is a function of the largest log
// density alone: the largest multiple of `bin` that is not above it, where t is rounded to an integer. `bin`
// is the weight floor in powers of two. A component with t_j below R - bin has weight 0: it is at least the
// floor, and at most twice the floor, below the best component. Weights are added in the order of the
// components in float32, and adding 0 changes nothing.
//
// R is not known before the last component. So an event keeps two sums: `sum` for the present R, and `next`,
// without the components that would have weight 0 if R were one bin higher. When R rises by one bin, `next`
// becomes the sum; when it rises by more, all components so far have weight 0. A change of R only scales by a
// power of two, which is exact. The sums are therefore those of the final R, bit for bit, whichever
// components without weight were left out and whenever the best one came. (A running maximum with rescaled
// sums does not have this property.)
//
// 2^t is 2^f times a power of two, where f = t - round(t), so its bits do not depend on R.
#pragma once

#include "mixture.cuh"

constexpr float LOG2E = 1.44269504f;
constexpr float LN2 = 0.69314718f;
constexpr float INTEGERS = 12582912.0f;  // 1.5 * 2^23: a float32 near it is an integer, in its low bits
constexpr float NO_SHIFT = INTEGERS + 2097152.0f;  // R = -2^21: an event without components

// The weight floor in powers of two: an even number, so that a tie is rounded alike for every R. Weights of
// less than 2^-60 never matter in float32.
__device__ __forceinline__ float bin_of(float weight_floor) {
    return fminf(fmaxf(2.0f * ceilf(0.5f * LOG2E * weight_floor), 2.0f), 60.0f);
}

// 2^n for an integer n of at most 126 in size.
__device__ __forceinline__ float power_of_two(float n) { return __int_as_float((127 + (int)n) << 23); }

// round(t) - R in the low bits of a float near INTEGERS; below INTEGERS - bin, the weight is 0.
__device__ __forceinline__ float rounded(float l, float shift) { return fmaf(l, LOG2E, shift); }

struct Weights {
    float shift;      // INTEGERS - R
    float sum, next;  // next: if R were one bin higher

    __device__ __forceinline__ void reset() {
        shift = NO_SHIFT;
        sum = next = 0.0f;
    }

    // The weight of a component with rounded(l, shift).
    __device__ __forceinline__ float of(float l, float at) const {
        const float fraction = fmaf(l, LOG2E, shift - at);
        return __int_as_float(__float_as_int(exp2f(fraction)) + (__float_as_int(at) << 23));
    }

    // Raises R for a component that is more than a bin above it.
    __device__ __forceinline__ void raise(float at, float bin) {
        const float risen = INTEGERS - bin * floorf((at - shift) / bin);
        sum = shift - risen == bin ? next * power_of_two(-bin) : 0.0f;
        next = 0.0f;
        shift = risen;
    }

    // Adds a component that has weight: at = rounded(l, shift) is at least INTEGERS - bin.
    __device__ __forceinline__ void add(float l, float at, float bin) {
        if (at >= INTEGERS + bin) {
            raise(at, bin);
            at = rounded(l, shift);
        }
        const float weight = of(l, at);
        sum += weight;
        if (at >= INTEGERS) next += weight;
    }

    // Adds a component.
    __device__ __forceinline__ void add(float l, float bin) {
        const float at = rounded(l, shift);
        if (at >= INTEGERS - bin) add(l, at, bin);
    }

    // The sum of earlier components for the R of `last`, a later state of the same event.
    __device__ __forceinline__ float sum_for(float last_shift, float bin) const {
        if (shift == last_shift) return sum;
        return shift - last_shift == bin ? next * power_of_two(-bin) : 0.0f;
    }

    // Whether float32 log densities are too coarse for the event: the best one is below FAR, or less than a bin
    // above it.
    __device__ __forceinline__ bool far() const { return INTEGERS - shift < FAR * LOG2E; }

    // log sum_j pi_j N(x | mu_j, Sigma_j)
    __device__ __forceinline__ double log_total() const {
        const int exponent = (__float_as_int(sum) >> 23) - 127;
        const float mantissa = __int_as_float(__float_as_int(sum) - (exponent << 23));
        return (double)(INTEGERS - shift + (float)exponent) * 0.6931471805599453 + (double)logf(mantissa);
    }
};

// Adds a component to the sums of a thread's events. Most components have weight for none of them.
template <int E>
__device__ __forceinline__ void add_weights(const float (&l)[E], float bin, Weights (&sums)[E]) {
    float at[E];
    bool any = false;
#pragma unroll
    for (int e = 0; e < E; e++) {
        at[e] = rounded(l[e], sums[e].shift);
        any |= at[e] >= INTEGERS - bin;
    }
    if (!any) return;
#pragma unroll
    for (int e = 0; e < E; e++) {
        if (at[e] >= INTEGERS - bin) sums[e].add(l[e], at[e], bin);
    }
}

// A search for the first component at which the cumulative sum exceeds a point; if none does, because of
// rounding, for the last one at which the sum grew.
struct Search {
    float shift, bin, point, sum;
    int label;  // -1: none yet

    __device__ __forceinline__ void add(int j, float l) {
        const float at = rounded(l, shift);
        if (at < INTEGERS - bin) return;
        const float grown = sum + Weights{shift, 0.0f, 0.0f}.of(l, at);
        if (grown > sum && sum <= point) label = j;
        sum = grown;
    }
};
