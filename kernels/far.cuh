// Far events: those so far from every component that float32 log densities are too coarse (0.03 nats where
// |y|^2 is 1e5). One thread does such an event in float64, with the packed rows in float64 (`exact`), as
// kernels/cpu/far.cpp does.
//
// Far events are rare, so nothing here is unrolled, kept in registers or inlined into a kernel.
#pragma once

#include "mixture.cuh"

struct FarTotal {
    double best, total;  // largest log density; sum of the weights relative to it
    int label;           // component with the largest log density
};

// log pi_j N(x | mu_j, Sigma_j), with the component's packed row in float64.
__device__ __noinline__ double exact_log_density(const float* event, const double* row) {
    double squares = 0.0;
    for (int r = 0; r < N_CHANNELS; r++) {
        const double* factors = row + mean_place(r) + 1;
        double y = 0.0;
        for (int i = 0; i <= r; i++) y = fma(factors[i], (double)event[i] - row[mean_place(i)], y);
        squares = fma(y, y, squares);
    }
    return row[0] - squares;
}

__device__ __forceinline__ double exact_weight(double gap, float floor) {
    return gap > -(double)floor ? exp(gap) : 0.0;
}

__device__ __noinline__ FarTotal far_total(const float* event, const double* exact, int n_components,
                                           float floor) {
    FarTotal far{-INFINITY, 0.0, 0};
    for (int j = 0; j < n_components; j++) {
        const double l = exact_log_density(event, exact + (size_t)j * PACK_DIM);
        if (l > far.best) {
            far.best = l;
            far.label = j;
        }
    }
    for (int j = 0; j < n_components; j++)
        far.total += exact_weight(exact_log_density(event, exact + (size_t)j * PACK_DIM) - far.best, floor);
    return far;
}

// The first component at which the cumulative sum of the weights exceeds uniform * total.
__device__ __noinline__ int far_label(const float* event, const double* exact, int n_components, float floor,
                                      const FarTotal& far, float uniform) {
    const double point = uniform * far.total;
    double sum = 0.0;
    int label = far.label;
    for (int j = 0; j < n_components && sum <= point; j++) {
        const double weight =
            exact_weight(exact_log_density(event, exact + (size_t)j * PACK_DIM) - far.best, floor);
        if (weight > 0.0) label = j;
        sum += weight;
    }
    return label;
}
