// Local approximate Gaussian processes (Gramacy and Apley 2015, J. Comput. Graph. Stat. 24:561) of one
// covariate, for dpmix.drift.local: for each time of prediction a design of a few points, the local variance
// and range, and the weights of the design's values in the prediction.
//
//   cov(y_i, y_j) = variance * rho(|t_i - t_j| / range) + (i == j) * noise_i
#pragma once

#include <cstddef>
#include <cstdint>

#include "vecchia.hpp"

namespace dpmix {

constexpr int MAX_DESIGN = 64;       // matrices of this size lie on the stack
constexpr int MAX_CANDIDATES = 256;  // nearest points among which a design is chosen

struct LocalInput {
    std::size_t n;
    const double *times, *values, *noise;  // [n] each; times ascend, values without mean and trend, noise > 0
    Correlation correlation;
    double centres[2], sds[2];  // of the normal priors of log variance and log range
    int size;                   // of a design: at most n and MAX_DESIGN
};

// Arrays by time of prediction; n is the size of a design.
struct LocalOutput {
    std::int32_t* designs;  // [P][n], ascending
    double* weights;        // [P][n]
    double* parameters;     // [P][2]: variance and range at the maximum of likelihood times prior
    double* variances;      // [P]: of the signal given the design; NaN if a covariance is singular
};

// Predicts at times [P], with the same bits for any number of threads.
//
// A design starts with the nearest points. It then takes one point after another: the candidate that reduces
// the variance of the prediction most (ALC), the first of equal ones. Its covariance with the prediction and its
// own variance, both given the design so far, are updated by each new point: a design costs O(n^2 candidates). The
// first design is for the prior's centre; the second, and last, for the maximum given the first.
void predict_locally(const LocalInput& input, const double* at, std::size_t count, int threads,
                     const LocalOutput& out);

}  // namespace dpmix
