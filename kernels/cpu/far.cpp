// Far events, so far from every component that float32 log densities are too coarse: the same weights in
// float64.

#include <cmath>

#include "sweep.hpp"

namespace dpmix {

FarEvent far_weights(const Mixture& mixture, const float* event, double* weights) {
    const int D = mixture.n_channels, K = mixture.n_components;
    double best = -INFINITY;
    for (int j = 0; j < K; j++) {
        const double* mean = mixture.means + static_cast<std::size_t>(j) * D;
        const double* whitener = mixture.whiteners + static_cast<std::size_t>(j) * D * D;
        double squares = 0.0;
        for (int r = 0; r < D; r++) {
            double y = 0.0;
            for (int i = 0; i <= r; i++) y += whitener[r * D + i] * (event[i] - mean[i]);
            squares += y * y;
        }
        weights[j] = mixture.log_constants[j] - 0.5 * squares;
        if (weights[j] > best) best = weights[j];
    }
    FarEvent far{0.0, 0.0, 0};
    for (int j = 0; j < K; j++) {
        const double gap = weights[j] - best;
        weights[j] = gap > -static_cast<double>(mixture.weight_floor) ? std::exp(gap) : 0.0;
        far.total += weights[j];
        if (weights[j] > weights[far.best]) far.best = j;
    }
    far.log_likelihood = best + std::log(far.total);
    return far;
}

}  // namespace dpmix
