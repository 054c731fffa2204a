#include "dense.hpp"

#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace dpmix {
namespace {

// The lower triangle of a matrix.
class Triangle {
    std::vector<double> numbers_;
    int dim_;

   public:
    explicit Triangle(int dim)
        : numbers_(static_cast<std::size_t>(dim) * static_cast<std::size_t>(dim)), dim_(dim) {}

    double* operator[](int row) { return numbers_.data() + static_cast<std::ptrdiff_t>(row) * dim_; }
};

Triangle triangle_of(const double* matrix, int dim) {
    Triangle out(dim);
    for (int i = 0; i < dim; i++) {
        for (int j = 0; j <= i; j++) out[i][j] = matrix[i * dim + j];
    }
    return out;
}

// Replaces a matrix by its lower Cholesky factor; false if it is not positive definite.
bool factorise(Triangle& matrix, int dim) {
    for (int j = 0; j < dim; j++) {
        for (int i = j; i < dim; i++) {
            double sum = matrix[i][j];
            for (int k = 0; k < j; k++) sum -= matrix[i][k] * matrix[j][k];
            if (i == j && !(sum > 0.0)) return false;
            matrix[i][j] = i == j ? std::sqrt(sum) : sum / matrix[j][j];
        }
    }
    return true;
}

}  // namespace

double log_det(const double* matrix, int dim) {
    Triangle factor = triangle_of(matrix, dim);
    if (!factorise(factor, dim)) return std::numeric_limits<double>::quiet_NaN();
    double sum = 0.0;
    for (int i = 0; i < dim; i++) sum += std::log(factor[i][i]);
    return 2.0 * sum;
}

bool is_above(const double* one, const double* other, int dim) {
    Triangle difference(dim);
    for (int i = 0; i < dim; i++) {
        for (int j = 0; j <= i; j++) difference[i][j] = one[i * dim + j] - other[i * dim + j];
    }
    return factorise(difference, dim);
}

bool draw_normal(const double* precision, const double* linear, const double* noise, int dim, double* out) {
    Triangle factor = triangle_of(precision, dim);
    if (!factorise(factor, dim)) return false;
    for (int i = 0; i < dim; i++) {
        double sum = linear[i];
        for (int k = 0; k < i; k++) sum -= factor[i][k] * out[k];
        out[i] = sum / factor[i][i];
    }
    for (int i = 0; i < dim; i++) out[i] += noise[i];
    for (int i = dim - 1; i >= 0; i--) {
        double sum = out[i];
        for (int k = i + 1; k < dim; k++) sum -= factor[k][i] * out[k];
        out[i] = sum / factor[i][i];
    }
    return true;
}

bool draw_wishart(const double* inverse, const double* normals, const double* gammas, int dim, double* out) {
    Triangle factor = triangle_of(inverse, dim), whitener(dim);
    if (!factorise(factor, dim)) return false;
    for (int j = dim - 1; j >= 0; j--) {  // whitener = bartlett factor^-1
        for (int i = j; i < dim; i++) {
            double sum = i == j ? std::sqrt(2.0 * gammas[i]) : normals[i * dim + j];
            for (int k = j + 1; k <= i; k++) sum -= whitener[i][k] * factor[k][j];
            whitener[i][j] = sum / factor[j][j];
        }
    }
    for (int a = 0; a < dim; a++) {
        for (int b = 0; b <= a; b++) {
            double sum = 0.0;
            for (int i = a; i < dim; i++) sum += whitener[i][a] * whitener[i][b];
            out[a * dim + b] = out[b * dim + a] = sum;
        }
    }
    return true;
}

}  // namespace dpmix
