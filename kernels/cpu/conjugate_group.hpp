// Draws and sums of conjugate.hpp for a group of components, one in each lane of a vector.
//
// Part of the code of one instruction set (sweep.cpp). Nothing is fused, so all sets give the same bits.
#pragma once

#include "conjugate.hpp"
#include "simd.hpp"

namespace dpmix {
namespace {

// A lower triangular matrix of each component of a group is stored by rows.
DPMIX_INLINE Lanes* triangle_row(Lanes* matrices, int i) { return matrices + triangle(0, i); }

DPMIX_INLINE void subtract_product(Lanes& sum, const Lanes& a, const Lanes& b) {
    for (int l = 0; l < GROUP; l++) sum.of[l] -= a.of[l] * b.of[l];
}

DPMIX_INLINE void add_product(Lanes& sum, const Lanes& a, const Lanes& b) {
    for (int l = 0; l < GROUP; l++) sum.of[l] += a.of[l] * b.of[l];
}

DPMIX_INLINE void divide_by(Lanes& sum, const Lanes& a) {
    for (int l = 0; l < GROUP; l++) sum.of[l] /= a.of[l];
}

// Element (i, j) of root root', j <= i, where root is lower triangular.
DPMIX_INLINE Lanes square_element(Lanes* root, int i, int j) {
    const Lanes *one = triangle_row(root, i), *other = triangle_row(root, j);
    Lanes sum{};
    for (int k = 0; k <= j; k++) add_product(sum, one[k], other[k]);
    return sum;
}

// Replaces matrices by their lower Cholesky factors, column by column: the elements of a column do not wait for
// each other. Returns the lowest lane whose matrix is not positive definite, or -1.
int factorise_group(Lanes* matrices, int dim) {
    bool failed[GROUP] = {};
    for (int j = 0; j < dim; j++) {
        const Lanes* above = triangle_row(matrices, j);
        for (int i = j; i < dim; i++) {
            Lanes* own = triangle_row(matrices, i);
            Lanes sum = own[j];
            for (int k = 0; k < j; k++) subtract_product(sum, own[k], above[k]);
            if (i > j) {
                divide_by(sum, above[j]);
            } else {
                for (int l = 0; l < GROUP; l++) {
                    failed[l] |= !(sum.of[l] > 0.0);
                    sum.of[l] = __builtin_sqrt(sum.of[l]);
                }
            }
            own[j] = sum;
        }
    }
    for (int l = 0; l < GROUP; l++) {
        if (failed[l]) return l;
    }
    return -1;
}

// Computes X with X right = left, column by column; all are lower triangular.
void divide_lower(Lanes* left, Lanes* right, int dim, Lanes* x) {
    for (int j = dim - 1; j >= 0; j--) {
        const Lanes pivot = triangle_row(right, j)[j];
        for (int i = j; i < dim; i++) {
            Lanes* own = triangle_row(x, i);
            Lanes sum = triangle_row(left, i)[j];
            for (int k = j + 1; k <= i; k++) subtract_product(sum, own[k], triangle_row(right, k)[j]);
            divide_by(sum, pivot);
            own[j] = sum;
        }
    }
}

// The components at places [first, first + GROUP); lanes beyond the last place repeat it.
struct GroupOf {
    std::size_t at[GROUP];

    GroupOf(const DrawInput& in, int first) {
        const int last = in.n_components - 1;
        for (int l = 0; l < GROUP; l++)
            at[l] = static_cast<std::size_t>(in.order[first + l < last ? first + l : last]);
    }
};

void load_draw(const DrawInput& in, const GroupOf& components, Lanes* factors, Lanes* bartlett) {
    const std::size_t dim = static_cast<std::size_t>(in.dim);
    for (int l = 0; l < GROUP; l++) {
        const std::size_t component = components.at[l];
        const double *scale = in.scales + component * dim * dim, *gammas = in.gammas + component * dim;
        const double* normals = in.normals + component * dim * dim;
        for (int i = 0; i < in.dim; i++, scale += dim, normals += dim) {
            Lanes *to_factor = triangle_row(factors, i), *to_bartlett = triangle_row(bartlett, i);
            for (int j = 0; j <= i; j++) to_factor[j].of[l] = scale[j];
            for (int j = 0; j < i; j++) to_bartlett[j].of[l] = normals[j];
            to_bartlett[i].of[l] = __builtin_sqrt(2.0 * gammas[i]);
        }
    }
}

void store_whiteners(Lanes* whiteners, int dim, int count, double* out) {
    for (int l = 0; l < count; l++) {
        for (int i = 0; i < dim; i++, out += dim) {
            const Lanes* row = triangle_row(whiteners, i);
            for (int j = 0; j <= i; j++) out[j] = row[j].of[l];
            for (int j = i + 1; j < dim; j++) out[j] = 0.0;
        }
    }
}

void store_covariances(Lanes* roots, int dim, int count, double* out) {
    for (int i = 0; i < dim; i++) {
        for (int j = 0; j <= i; j++) {
            const Lanes sum = square_element(roots, i, j);
            for (int l = 0; l < count; l++) {
                double* matrix = out + l * dim * dim;
                matrix[i * dim + j] = matrix[j * dim + i] = sum.of[l];
            }
        }
    }
}

void store_means(const DrawInput& in, const GroupOf& components, int count, Lanes* roots, Lanes* noise,
                 double* means) {
    const std::size_t dim = static_cast<std::size_t>(in.dim);
    double spread[GROUP];
    for (int l = 0; l < GROUP; l++) {
        const double* own = in.noise + components.at[l] * dim;
        for (int k = 0; k < in.dim; k++) noise[k].of[l] = own[k];
        spread[l] = __builtin_sqrt(in.precisions[components.at[l]]);
    }
    for (int i = 0; i < in.dim; i++) {
        Lanes away{};
        for (int k = 0; k <= i; k++) add_product(away, triangle_row(roots, i)[k], noise[k]);
        for (int l = 0; l < count; l++)
            means[l * in.dim + i] =
                in.means[components.at[l] * dim + static_cast<std::size_t>(i)] + away.of[l] / spread[l];
    }
}

int draw_group(const DrawInput& in, int first, Lanes* scratch, const Drawn& out) {
    const int size = triangle(0, in.dim), left = in.n_components - first;
    const int count = left < GROUP ? left : GROUP;
    Lanes *factors = scratch, *bartlett = factors + size, *roots = bartlett + size, *whiteners = roots + size;
    const GroupOf components(in, first);
    load_draw(in, components, factors, bartlett);
    const int failed = factorise_group(factors, in.dim);
    if (failed >= 0) return static_cast<int>(components.at[failed]);
    divide_lower(bartlett, factors, in.dim, whiteners);
    divide_lower(factors, bartlett, in.dim, roots);
    const std::size_t row = static_cast<std::size_t>(first) * static_cast<std::size_t>(in.dim);
    const std::size_t matrix = row * static_cast<std::size_t>(in.dim);
    store_whiteners(whiteners, in.dim, count, out.whiteners + matrix);
    store_covariances(roots, in.dim, count, out.covariances + matrix);
    store_means(in, components, count, roots, bartlett, out.means + row);  // bartlett is no longer needed
    return -1;
}

int whiten_group(const double* matrices, int count, int dim, Lanes* scratch, double* out) {
    const int size = triangle(0, dim);
    Lanes *factors = scratch, *unit = factors + size, *whiteners = unit + size;
    for (int l = 0; l < GROUP; l++) {
        const double* row = matrices + (l < count ? l : count - 1) * dim * dim;
        for (int i = 0; i < dim; i++, row += dim) {
            for (int j = 0; j <= i; j++) {
                triangle_row(factors, i)[j].of[l] = row[j];
                triangle_row(unit, i)[j].of[l] = i == j ? 1.0 : 0.0;
            }
        }
    }
    const int failed = factorise_group(factors, dim);
    if (failed >= 0) return failed;
    divide_lower(unit, factors, dim, whiteners);
    store_whiteners(whiteners, dim, count, out);
    return -1;
}

// Lanes beyond the last component hold zeros, which add nothing.
void load_sums(const ComponentsInput& in, int first, Lanes* whiteners, Lanes* away) {
    const std::size_t dim = static_cast<std::size_t>(in.dim);
    for (int l = 0; l < GROUP; l++) {
        const bool held = first + l < in.n_held;
        const std::size_t component = held ? static_cast<std::size_t>(in.held[first + l]) : 0;
        const double *mean = in.means + component * dim, *whitener = in.whiteners + component * dim * dim;
        for (int i = 0; i < in.dim; i++, whitener += dim) {
            Lanes* row = triangle_row(whiteners, i);
            for (int j = 0; j <= i; j++) row[j].of[l] = held ? whitener[j] : 0.0;
            away[i].of[l] = held ? mean[i] - in.m[i] : 0.0;
        }
    }
}

void sum_group(const ComponentsInput& in, int first, Lanes* scratch, const LaneSums& sums) {
    const int dim = in.dim;
    Lanes *whiteners = scratch, *away = whiteners + triangle(0, dim), *whitened = away + dim;
    load_sums(in, first, whiteners, away);
    for (int i = 0; i < dim; i++) {
        Lanes own{};
        for (int k = 0; k <= i; k++) add_product(own, triangle_row(whiteners, i)[k], away[k]);
        add_product(*sums.spread, own, own);
        whitened[i] = own;
    }
    for (int a = 0; a < dim; a++) {
        for (int i = a; i < dim; i++) add_product(sums.shift[a], triangle_row(whiteners, i)[a], whitened[i]);
        for (int b = 0; b <= a; b++) {
            Lanes sum = triangle_row(sums.precision, a)[b];
            for (int i = a; i < dim; i++) {
                const Lanes* row = triangle_row(whiteners, i);
                add_product(sum, row[a], row[b]);
            }
            triangle_row(sums.precision, a)[b] = sum;
        }
    }
}

}  // namespace
}  // namespace dpmix
