// Posterior mean and variance of a Gaussian process at events, after judgements of some points.
//
// With L the lower Cholesky factor of the covariance of the judgements and k the correlations between an event
// and the points, v = L^-1 k. The mean is v' L^-1 y, and the variance the prior one less v'v. Judging further
// points adds rows to L^-1 and leaves the others as they are, so only those rows are computed for each event.
//
// Correlations of 64 points and a tile of events stay in the cache of a core. Sums run in the order of the points
// and of the rows, separately in each lane, and continue from the mean and variance before. So the result of an event
// depends on the event alone, and has the same bits for any division of the rows among calls.
#pragma once

#include <cstring>

#include "simd.hpp"

namespace dpmix {
namespace {

constexpr int V = W == 16 ? 4 : 2;  // vectors of a tile: with GP_BLOCK rows, sums that fit into the registers
constexpr int SPAN = V * W;         // its events
constexpr int GP_BATCH = 64;        // points whose correlations are held

// Writes the correlations of GP_BLOCK points, [GP_BLOCK][V].
template <bool LAPLACIAN>
DPMIX_INLINE void correlate(const Floats* x, const float* points, int n_channels, Floats* correlations) {
    Floats sums[GP_BLOCK][V] = {};
    for (int c = 0; c < n_channels; c++) {
        DPMIX_UNROLL
        for (int p = 0; p < GP_BLOCK; p++) {
            const Floats point = splat(points[c * GP_BLOCK + p]);
            DPMIX_UNROLL
            for (int u = 0; u < V; u++) {
                const Floats d = x[c * V + u] - point;
                sums[p][u] = LAPLACIAN ? sums[p][u] + larger(d, -d) : fma(d, d, sums[p][u]);
            }
        }
    }
    DPMIX_UNROLL
    for (int p = 0; p < GP_BLOCK; p++) {
        DPMIX_UNROLL
        for (int u = 0; u < V; u++) correlations[p * V + u] = exp_negative(-sums[p][u]);
    }
}

// Adds the products of `count` columns of GP_BLOCK rows, [column][GP_BLOCK], with correlations, [column][V].
DPMIX_INLINE void add_products(const float* rows, const Floats* correlations, int count, Floats* v) {
    Floats sums[GP_BLOCK][V];
    DPMIX_UNROLL
    for (int r = 0; r < GP_BLOCK; r++) {
        DPMIX_UNROLL
        for (int u = 0; u < V; u++) sums[r][u] = v[r * V + u];
    }
    for (int j = 0; j < count; j++) {
        DPMIX_UNROLL
        for (int r = 0; r < GP_BLOCK; r++) {
            const Floats weight = splat(rows[j * GP_BLOCK + r]);
            DPMIX_UNROLL
            for (int u = 0; u < V; u++) sums[r][u] = fma(weight, correlations[j * V + u], sums[r][u]);
        }
    }
    DPMIX_UNROLL
    for (int r = 0; r < GP_BLOCK; r++) {
        DPMIX_UNROLL
        for (int u = 0; u < V; u++) v[r * V + u] = sums[r][u];
    }
}

// The scaled values of events from, ... by channel; the last event is repeated beyond the end.
inline void load_span(const GaussianProcess& process, const float* events, int from, int n_events, float* x) {
    const int D = process.n_channels;
    for (int l = 0; l < SPAN; l++) {
        const int at = from + l < n_events ? from + l : n_events - 1;
        const float* event = events + static_cast<std::size_t>(at) * static_cast<std::size_t>(D);
        for (int c = 0; c < D; c++) x[c * SPAN + l] = event[c] * process.scales[c];
    }
}

// Writes v [row][V] of the tile.
template <bool LAPLACIAN>
void whiten_span(const GaussianProcess& process, const Floats* x, Floats* v) {
    const int n = process.n_points, first = n - process.n_rows;  // row r ends at column first + r
    const int blocks = (process.n_rows + GP_BLOCK - 1) / GP_BLOCK;
    const int columns = (n + GP_BLOCK - 1) / GP_BLOCK * GP_BLOCK;
    Floats correlations[GP_BATCH * V];
    for (int i = 0; i < blocks * GP_BLOCK * V; i++) v[i] = Floats{};
    for (int from = 0; from < n; from += GP_BATCH) {
        const int end = from + GP_BATCH < columns ? from + GP_BATCH : columns;
        for (int j = from; j < end; j += GP_BLOCK)
            correlate<LAPLACIAN>(x, process.points + j * process.n_channels, process.n_channels,
                                 correlations + (j - from) * V);
        for (int b = 0; b < blocks; b++) {
            const int last = first + (b + 1) * GP_BLOCK;  // columns of the block
            const int stop = last < end ? last : end;
            if (stop <= from) continue;
            const float* rows = process.rows + (static_cast<std::size_t>(b) * columns + from) * GP_BLOCK;
            add_products(rows, correlations, stop - from, v + b * GP_BLOCK * V);
        }
    }
}

void update_posterior(const GaussianProcess& process, const float* events, int n_events, float* mean,
                      float* variance, float* scratch) {
    Floats* v = (Floats*)scratch;
    alignas(64) float x[MAX_CHANNELS * SPAN];
    for (int from = 0; from < n_events; from += SPAN) {
        load_span(process, events, from, n_events, x);
        if (process.laplacian) whiten_span<true>(process, (const Floats*)x, v);
        else whiten_span<false>(process, (const Floats*)x, v);
        const int count = n_events - from < SPAN ? n_events - from : SPAN;
        Floats means[V] = {}, variances[V] = {};
        std::memcpy(means, mean + from, static_cast<std::size_t>(count) * sizeof(float));
        std::memcpy(variances, variance + from, static_cast<std::size_t>(count) * sizeof(float));
        for (int r = 0; r < process.n_rows; r++) {
            for (int u = 0; u < V; u++) {
                means[u] = fma(splat(process.targets[r]), v[r * V + u], means[u]);
                variances[u] = fma(-v[r * V + u], v[r * V + u], variances[u]);
            }
        }
        std::memcpy(mean + from, means, static_cast<std::size_t>(count) * sizeof(float));
        std::memcpy(variance + from, variances, static_cast<std::size_t>(count) * sizeof(float));
    }
}

}  // namespace
}  // namespace dpmix
