// Vecchia's approximation (1988) of the likelihood of a Gaussian process of one covariate: the density of
// each point given its nearest predecessors in an ordering. Log likelihood, gradient and expected information
// are computed in one pass (Guinness 2021, Stat. Comput. 31:25), for dpmix.drift.likelihood.
//
//   cov(y_i, y_j) = variance * rho(|t_i - t_j| / range) + (i == j) * (nugget + known_i)
#pragma once

#include <cstddef>
#include <cstdint>

#include "sweep.hpp"

namespace dpmix {

enum class Correlation : int { MATERN_12, MATERN_32, MATERN_52, SQUARED_EXPONENTIAL };

constexpr int MAX_NEIGHBOURS = 64;  // arrays of this size lie on the stack

// Sums over points. The derivatives are with respect to the logarithms of variance, range and nugget.
struct VecchiaSums {
    double log_det = 0.0, yy = 0.0, xy = 0.0, xx = 0.0;  // x is 1: the sums give the mean, too
    double d_log_det[3] = {}, d_yy[3] = {}, d_xy[3] = {}, d_xx[3] = {};
    double information[3][3] = {};  // the lower triangle is filled
};

struct VecchiaInput {
    std::size_t n;
    int m;                                 // at most MAX_NEIGHBOURS
    const double *times, *values, *known;  // [n] each; known: variances of the errors
    const std::int32_t* neighbours;        // [n][m]; ascending, -1 after the last one
    Correlation correlation;
    double variance, range, nugget;
};

// Writes neighbours [n][m]: for each point the m nearest of its predecessors in `order` [n], a permutation.
// They ascend; -1 follows the last one. The times [n] must ascend. At equal distance the earlier point counts.
void nearest_predecessors(const double* times, const std::int64_t* order, std::size_t n, int m,
                          std::int32_t* neighbours);

// Returns the sums, the same bits for any number of threads and, except on x86-64-v2, any instruction set. If
// the covariance of a point and its neighbours is not positive definite to float64, log_det is NaN.
VecchiaSums vecchia(const Sweep& sweep, const VecchiaInput& input, int threads);

}  // namespace dpmix
