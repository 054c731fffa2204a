// The part of a sweep between its sums and its new parameters: normal inverse Wishart conditionals, and
// draws from them given random numbers. All arrays are float64; K components, D channels.
//
// Every number is computed by the operations of dpmix/model/reference.py in their order, without fused
// multiply-adds, so the bits are the same on every processor.
#pragma once

#include <cstddef>

namespace dpmix {

// The statistics of labelled events (dpmix.model.mixture.Stats) and the prior's hyperparameters.
struct ConjugateInput {
    int n_components, dim;
    const double *counts, *sums, *scatters, *centres;  // [K], [K][D], [K][D][D], [K][D]
    const double *m, *scale;                           // [D], [D][D]: nu * Phi
    double gamma;
};

// Writes means [K][D], precisions [K] and scales [K][D][D] of the conditionals.
void conjugate_posterior(const ConjugateInput& input, double* means, double* precisions, double* scales);

// Conditionals of all components, and the random numbers of a draw.
struct DrawInput {
    int n_components, dim;
    const double *means, *precisions, *scales;  // [K][D], [K], [K][D][D]: the lower triangles are read
    const double *normals, *gammas, *noise;  // [K][D][D]: strictly lower triangles are read; [K][D]; [K][D]
};

// Writes means [K][D], covariances [K][D][D] and whiteners [K][D][D] of a draw. Returns the first component
// whose scale matrix is not positive definite to float64, or -1. Components are shared among `threads`.
int draw_parameters(const DrawInput& input, int threads, double* means, double* covariances,
                    double* whiteners);

}  // namespace dpmix
