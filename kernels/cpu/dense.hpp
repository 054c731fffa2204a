// One small symmetric matrix at a time, for the draws of the hyperparameters. Matrices are float64 [D][D], by
// rows, and only their lower triangles are read.
//
// Every number is computed by the operations of tests/model/native_reference.py in their order, without fused
// multiply-adds, so the bits are the same on every processor.
#pragma once

namespace dpmix {

// The log determinant; NaN if the matrix is not positive definite to float64.
double log_det(const double* matrix, int dim);

// Whether the difference of two matrices is positive definite to float64.
bool is_above(const double* one, const double* other, int dim);

// Writes a normal draw, [D], with this precision and the mean precision^-1 linear, given standard normal
// numbers. Returns whether the precision is positive definite to float64.
bool draw_normal(const double* precision, const double* linear, const double* noise, int dim, double* out);

// Writes a Wishart draw, [D][D], given the inverse of its scale matrix and the random numbers of Bartlett's
// decomposition: normal numbers [D][D], those strictly below the diagonal, and gamma numbers [D]. Returns
// whether the inverse is positive definite to float64.
bool draw_wishart(const double* inverse, const double* normals, const double* gammas, int dim, double* out);

}  // namespace dpmix
