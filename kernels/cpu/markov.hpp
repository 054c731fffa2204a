// Gaussian processes of one covariate with a Matern correlation of smoothness 1/2, 3/2 or 5/2, exactly and in linear
// time, for dpmix.drift.markov. The signal and its derivatives (up to 0, 1 or 2) are a Markov process: given the
// state at one time, the states before and after it are independent. So Vecchia's approximation of the latent states,
// each given the nearest one before it, is exact (Katzfuss and Guinness 2021, Stat. Sci. 36:124, for latent and
// observed values; Hartikainen and Sarkka 2010, IEEE MLSP, for the states).
//
//   cov(y_i, y_j) = variance * rho(|t_i - t_j| / range) + (i == j) * noise_i
#pragma once

#include <cstddef>

#include "vecchia.hpp"

namespace dpmix {

struct MarkovInput {
    std::size_t n;
    const double *times, *noise;  // [n] each; times ascend; a noise of infinity is a time without a value
    Correlation correlation;      // not SQUARED_EXPONENTIAL
    double variance, range;
    std::size_t count;      // of columns
    const double* columns;  // [count][n]: values, or what else is to be whitened and smoothed
};

// Writes the columns times the inverse of the lower Cholesky factor of the covariance, [count][n], and returns the log
// determinant of the covariance.
double whiten(const MarkovInput& input, double* whitened);

// Writes the posterior mean of the signal given each column as values, [count][n], and its variances [n].
void smooth(const MarkovInput& input, double* means, double* variances);

}  // namespace dpmix
