// Sums of r z z' over events of one component, z = (x - centre, 1): scatter, sum and count in one
// (sweep.hpp).
//
// 64 events at a time are centred in a small buffer. Then 8 rows of the triangle by one vector are summed
// over the 64 events in float32 registers and added to the float64 moments. The order of the additions to an
// element is the order of the events, for any W.
#pragma once

#include "tile.hpp"

namespace dpmix {
namespace {

constexpr int AHEAD = 32;  // events prefetched
constexpr int GROUP = 64;  // events summed in float32 before they are added in float64

// z = (x - centre, 1, 0, ...), padded_width floats.
DPMIX_INLINE void centre_event(const float* event, const float* centre, int n_channels, float* z) {
    for (int v = 0; v * W <= n_channels; v++) {
        const int left = n_channels - v * W;
        const Floats x = load_first(event + v * W, left < W ? left : W);
        *(Floats*)(z + v * W) = x - *(const Floats*)(centre + v * W);
    }
}

// share * z
DPMIX_INLINE void scale_event(const float* z, float share, int n_channels, float* scaled) {
    const Floats factor = splat(share);
    for (int i = 0; i <= n_channels; i += W) *(Floats*)(scaled + i) = factor * *(const Floats*)(z + i);
}

// Rows [first, first + R) of the triangle: the sum over events of left[row] * right, where right is the
// weighted z.
template <int R>
DPMIX_INLINE void add_rows(const float* left, const float* right, int count, int width, int first, int end,
                           double* moments) {
    for (int column = 0; column < first + R && column < end; column += W) {
        Floats sums[R] = {};
        for (int t = 0; t < count; t++) {
            const Floats z = *(const Floats*)(right + t * width + column);
            DPMIX_UNROLL
            for (int r = 0; r < R; r++) sums[r] = fma(splat(left[t * width + first + r]), z, sums[r]);
        }
        DPMIX_UNROLL
        for (int r = 0; r < R; r++) {
            if (first + r >= end) break;
            *(Doubles*)(moments + moment_row(first + r) + column) +=
                __builtin_convertvector(sums[r], Doubles);
        }
    }
}

// Adds a group of at most GROUP events to the moments of a component.
void add_group(const float* left, const float* right, int count, int n_channels, double* moments) {
    const int width = padded_width(n_channels), end = n_channels + 1;
    int first = 0;
    for (; first + 4 < end; first += 8) add_rows<8>(left, right, count, width, first, end, moments);
    if (first < end) add_rows<4>(left, right, count, width, first, end, moments);
}

// Writes the moments of drawn events; does not add them.
void component_moments(const Mixture& mixture, int component, const float* events, const float* weights,
                       const std::uint16_t* order, int count, double* moments, Scratch& scratch) {
    const int D = mixture.n_channels, width = padded_width(D);
    const float* centre = mixture.centres + static_cast<std::size_t>(component) * width;
    float *left = scratch.rows, *right = weights == nullptr ? left : left + GROUP * width;
    for (int i = 0; i < moment_size(D); i++) moments[i] = 0.0;
    for (int from = 0; from < count; from += GROUP) {
        const int group = count - from < GROUP ? count - from : GROUP;
        for (int t = 0; t < group; t++) {
            const int ahead = from + t + AHEAD < count ? from + t + AHEAD : count - 1;
            prefetch_event(events, order[ahead], D);
            centre_event(events + static_cast<std::size_t>(order[from + t]) * D, centre, D, left + t * width);
        }
        if (weights != nullptr) {
            for (int t = 0; t < group; t++)
                scale_event(left + t * width, weights[order[from + t]], D, right + t * width);
        }
        add_group(left, right, group, D, moments);
    }
}

}  // namespace
}  // namespace dpmix
