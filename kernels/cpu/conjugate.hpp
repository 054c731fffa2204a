// The part of a sweep between its sums and its new parameters: sums over the components for their
// hyperparameters, normal inverse Wishart conditionals, and draws from them given random numbers. All arrays
// are float64; K components, D channels.
//
// Every number is computed by the operations of tests/model/native_reference.py in their order, without fused
// multiply-adds, so the bits are the same on every processor.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sweep.hpp"

namespace dpmix {

constexpr int GROUP = 8;  // components computed together, for every instruction set

// A number of each component of a group.
struct alignas(64) Lanes {
    double of[GROUP];
};

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
    const std::int64_t* order;                  // [K]: the component at each place of the draw
    const double *means, *precisions, *scales;  // [K][D], [K], [K][D][D]: the lower triangles are read
    const double *normals, *gammas, *noise;  // [K][D][D]: strictly lower triangles are read; [K][D]; [K][D]
};

// A draw: means [K][D], covariances [K][D][D] and whiteners [K][D][D].
struct Drawn {
    double *means, *covariances, *whiteners;
};

// Draws all components, which `threads` share. Returns a component whose scale matrix is not positive definite
// to float64, the one with the lowest number of those found, or -1.
int draw_parameters(const Sweep& sweep, const DrawInput& input, int threads, const Drawn& out);

// Writes the inverses of the lower Cholesky factors of matrices [K][D][D], whose lower triangles are
// read. Returns the first matrix that is not positive definite to float64, or -1.
int whiteners_of(const Sweep& sweep, int n_matrices, int dim, const double* matrices, double* whiteners);

// The components that hold events, by their numbers.
struct ComponentsInput {
    int n_held, dim;
    const std::int64_t* held;
    const double *means, *whiteners, *m;  // [K][D], [K][D][D]: the lower triangles are read; [D]
};

// Sums over the groups, for each lane: as in `sum_components`, precision as a triangle.
struct LaneSums {
    Lanes *precision, *shift, *spread;
};

// Writes sum_j Sigma_j^-1, [D][D], and sum_j Sigma_j^-1 (mu_j - m), [D]. Returns the sum of the squared
// Mahalanobis distances of the means from m. The components of a lane are summed first, then the lanes.
double sum_components(const Sweep& sweep, const ComponentsInput& input, double* precision, double* shift);

}  // namespace dpmix
