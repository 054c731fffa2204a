// Clearances (clearance.hpp) of one component from all others, a group of them at a time.
//
// Part of the code of one instruction set (sweep.cpp).
#pragma once

#include "clearance.hpp"
#include "conjugate_group.hpp"

namespace dpmix {
namespace {

// More than all relative rounding in float32 of a bound and of a sum of D squares.
constexpr double SLACK = 1e-5;

// Float32 rounding of one element of y, relative to the sum of the absolute values of its terms: a mean, a
// difference and a whitener are rounded, and on x86-64-v2 each multiply-add twice.
constexpr double rounding(int dim) { return (2 * dim + 5) * 0x1p-24; }

// The parts of a group, or of one component in all lanes.
struct ClearanceGroup {
    Lanes *factors, *covariances, *lengths, *means;

    ClearanceGroup(Lanes* at, int dim)
        : factors(at),
          covariances(factors + triangle(0, dim)),
          lengths(covariances + triangle(0, dim)),
          means(lengths + dim) {}
};

// Loads a group. Lanes beyond the last component repeat it.
void prepare_clearances(const ClearanceInput& in, int group, Lanes* scratch) {
    const std::size_t dim = static_cast<std::size_t>(in.dim);
    const int size = triangle(0, in.dim), last = in.n_components - 1, first = group * GROUP;
    const ClearanceGroup out(
        in.groups + static_cast<std::size_t>(group) * static_cast<std::size_t>(clearance_group_size(in.dim)),
        in.dim);
    Lanes *whiteners = scratch, *identity = whiteners + size;
    for (int l = 0; l < GROUP; l++) {
        const std::size_t component = static_cast<std::size_t>(first + l < last ? first + l : last);
        const double* whitener = in.whiteners + component * dim * dim;
        for (int i = 0; i < in.dim; i++, whitener += dim) {
            for (int j = 0; j <= i; j++) {
                triangle_row(whiteners, i)[j].of[l] = whitener[j];
                triangle_row(identity, i)[j].of[l] = i == j;
            }
            out.means[i].of[l] = in.means[component * dim + static_cast<std::size_t>(i)];
        }
    }
    divide_lower(identity, whiteners, in.dim, out.factors);
    for (int i = 0; i < in.dim; i++) {
        for (int j = 0; j <= i; j++) triangle_row(out.covariances, i)[j] = square_element(out.factors, i, j);
    }
    for (int j = 0; j < in.dim; j++) {
        Lanes sum{};
        for (int i = j; i < in.dim; i++)
            add_product(sum, triangle_row(whiteners, i)[j], triangle_row(whiteners, i)[j]);
        for (int l = 0; l < GROUP; l++) out.lengths[j].of[l] = __builtin_sqrt(0.5 * sum.of[l]);
    }
}

// Solves (factor factor') x = vector in place; returns the sum of squares of factor^-1 vector.
Lanes solve_group(Lanes* factor, Lanes* vector, int dim) {
    Lanes squares{};
    for (int i = 0; i < dim; i++) {
        const Lanes* row = triangle_row(factor, i);
        for (int k = 0; k < i; k++) subtract_product(vector[i], row[k], vector[k]);
        divide_by(vector[i], row[i]);
        add_product(squares, vector[i], vector[i]);
    }
    for (int i = dim - 1; i >= 0; i--) {
        for (int k = i + 1; k < dim; k++) subtract_product(vector[i], triangle_row(factor, k)[i], vector[k]);
        divide_by(vector[i], triangle_row(factor, i)[i]);
    }
    return squares;
}

// |factor' vector|
Lanes turned_length(Lanes* factor, const Lanes* vector, int dim) {
    Lanes squares{};
    for (int k = 0; k < dim; k++) {
        Lanes sum{};
        for (int i = k; i < dim; i++) add_product(sum, triangle_row(factor, i)[k], vector[i]);
        add_product(squares, sum, sum);
    }
    for (double& square : squares.of) square = __builtin_sqrt(square);
    return squares;
}

// Bounds of the rounding of |y_j| for an event with |y_a| <= r: `fixed` + `growing` r.
struct RoundingBound {
    Lanes fixed{}, growing{};

    // of: group of component j; near: component a; apart [D]: mu_a - mu_j.
    RoundingBound(const ClearanceGroup& of, const ClearanceGroup& near, const Lanes* apart, int dim) {
        for (int i = 0; i < dim; i++) {
            for (int l = 0; l < GROUP; l++) {
                const double factor = rounding(dim) * of.lengths[i].of[l];
                const double deviation = __builtin_sqrt(2.0 * triangle_row(near.covariances, i)[i].of[l]);
                fixed.of[l] += factor * (__builtin_fabs(apart[i].of[l]) + __builtin_fabs(of.means[i].of[l]));
                growing.of[l] += factor * deviation;
            }
        }
    }
};

// Writes the distances and widenings [K, in whole groups] from component `near`. A distance of 0 rules nothing
// out.
void clearances(const ClearanceInput& in, int near, Lanes* scratch, float* distances, float* widenings) {
    const int dim = in.dim, size = clearance_group_size(dim);
    const auto group = [&](int number) { return in.groups + static_cast<std::size_t>(number) * size; };
    const ClearanceGroup own(scratch, dim);
    for (int i = 0; i < size; i++) {
        for (double& lane : scratch[i].of) lane = group(near / GROUP)[i].of[near % GROUP];
    }
    Lanes *sum = scratch + size, *apart = sum + triangle(0, dim), *direction = apart + dim;
    for (int i = 0; i < dim; i++) apart[i] = Lanes{};
    const RoundingBound at_near(own, own, apart, dim);

    for (int first = 0; first < in.n_components; first += GROUP) {
        const ClearanceGroup others(group(first / GROUP), dim);
        for (int i = 0; i < triangle(0, dim); i++) {
            for (int l = 0; l < GROUP; l++)
                sum[i].of[l] = own.covariances[i].of[l] + others.covariances[i].of[l];
        }
        for (int i = 0; i < dim; i++) {
            for (int l = 0; l < GROUP; l++) apart[i].of[l] = own.means[i].of[l] - others.means[i].of[l];
            direction[i] = apart[i];
        }
        factorise_group(sum, dim);  // a matrix that is not positive definite gives NaN, and a distance of 0
        const Lanes product = solve_group(sum, direction, dim);
        const Lanes from = turned_length(own.factors, direction, dim);
        const Lanes to = turned_length(others.factors, direction, dim);
        const RoundingBound rounded(others, own, apart, dim);
        for (int l = 0; l < GROUP; l++) {
            const double known = 1.0 - at_near.growing.of[l];  // |y_a| <= (rounded |y_a| + fixed) / known
            const double widening = (from.of[l] / to.of[l] + rounded.growing.of[l]) / known;
            const double distance = product.of[l] / (__builtin_sqrt(2.0) * to.of[l]) - rounded.fixed.of[l] -
                                    widening * at_near.fixed.of[l];
            const bool useful = known > 0.0 && distance > 0.0 && distance < 1e15 && widening < 1e15;
            distances[first + l] = useful ? static_cast<float>(distance * (1.0 - SLACK)) : 0.0f;
            widenings[first + l] = useful ? static_cast<float>(widening * (1.0 + SLACK)) : 0.0f;
        }
    }
}

}  // namespace
}  // namespace dpmix
