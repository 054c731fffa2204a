// The pass of a Gaussian process over all events: dpmix.explore.posterior.
#pragma once

#include "sweep.hpp"

namespace dpmix {

// Judged points, and the last rows of the inverse Cholesky factor of their covariance.
struct Judged {
    bool laplacian;
    int n_channels, n_points, n_rows;
    const float* scales;   // [D]
    const float* points;   // [n_points][D]
    const float* rows;     // [n_rows][n_points], 0 above the diagonal
    const float* targets;  // [n_rows]
};

// Updates the mean and the variance [n_events] of events [n_events][D]. The same bits for any number of threads.
void update_posterior(const Sweep& sweep, const Judged& judged, const float* events, std::size_t n_events,
                      int threads, float* mean, float* variance);

}  // namespace dpmix
