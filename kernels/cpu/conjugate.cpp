#include "conjugate.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "parallel.hpp"

namespace dpmix {
namespace {

constexpr int LANES = 8;  // components computed together, one in each lane of a vector
constexpr int NONE = -1;
constexpr double MOST_THREADS = 16.0;

// A number of each of LANES components.
struct alignas(64) Lanes {
    double of[LANES];
};

// The lower triangles of LANES matrices, by rows: element (i, j), j <= i.
class Triangles {
    std::vector<Lanes> elements_;

   public:
    explicit Triangles(int dim) : elements_(static_cast<std::size_t>(dim * (dim + 1) / 2)) {}

    Lanes* row(int i) { return elements_.data() + i * (i + 1) / 2; }
    const Lanes* row(int i) const { return elements_.data() + i * (i + 1) / 2; }
};

inline void subtract_product(Lanes& sum, const Lanes& a, const Lanes& b) {
    for (int l = 0; l < LANES; l++) sum.of[l] -= a.of[l] * b.of[l];
}

inline void add_product(Lanes& sum, const Lanes& a, const Lanes& b) {
    for (int l = 0; l < LANES; l++) sum.of[l] += a.of[l] * b.of[l];
}

inline void divide(Lanes& sum, const Lanes& a) {
    for (int l = 0; l < LANES; l++) sum.of[l] /= a.of[l];
}

// Replaces matrices by their lower Cholesky factors. Returns the lowest lane whose matrix is not positive
// definite, or NONE.
int factorise(Triangles& matrices, int dim) {
    bool failed[LANES] = {};
    for (int i = 0; i < dim; i++) {
        Lanes* own = matrices.row(i);
        for (int j = 0; j <= i; j++) {
            const Lanes* other = matrices.row(j);
            Lanes sum = own[j];
            for (int k = 0; k < j; k++) subtract_product(sum, own[k], other[k]);
            if (j < i) {
                divide(sum, other[j]);
            } else {
                for (int l = 0; l < LANES; l++) {
                    failed[l] |= !(sum.of[l] > 0.0);
                    sum.of[l] = std::sqrt(sum.of[l]);
                }
            }
            own[j] = sum;
        }
    }
    const bool* first = std::find(failed, failed + LANES, true);
    return first == failed + LANES ? NONE : static_cast<int>(first - failed);
}

// Computes X with X right = left; all are lower triangular.
void divide_lower(const Triangles& left, const Triangles& right, int dim, Triangles& x) {
    for (int i = 0; i < dim; i++) {
        Lanes* own = x.row(i);
        for (int j = i; j >= 0; j--) {
            Lanes sum = left.row(i)[j];
            for (int k = j + 1; k <= i; k++) subtract_product(sum, own[k], right.row(k)[j]);
            divide(sum, right.row(j)[j]);
            own[j] = sum;
        }
    }
}

// The work space of one thread, and the draw of LANES components from `first` on.
struct Draw {
    const DrawInput& in;
    Triangles factors, bartlett, roots, whiteners;

    explicit Draw(const DrawInput& input)
        : in(input), factors(in.dim), bartlett(in.dim), roots(in.dim), whiteners(in.dim) {}

    // Lanes beyond the last component repeat it.
    int component(int first, int lane) const { return std::min(first + lane, in.n_components - 1); }

    void load(int first) {
        const std::size_t dim = static_cast<std::size_t>(in.dim);
        for (int l = 0; l < LANES; l++) {
            const std::size_t component = static_cast<std::size_t>(this->component(first, l));
            const double* scale = in.scales + component * dim * dim;
            const double* normals = in.normals + component * dim * dim;
            for (int i = 0; i < in.dim; i++, scale += dim, normals += dim) {
                Lanes *to_factor = factors.row(i), *to_bartlett = bartlett.row(i);
                for (int j = 0; j <= i; j++) to_factor[j].of[l] = scale[j];
                for (int j = 0; j < i; j++) to_bartlett[j].of[l] = normals[j];
                to_bartlett[i].of[l] = std::sqrt(2.0 * in.gammas[component * dim + i]);
            }
        }
    }

    int run(int first, double* means, double* covariances, double* out_whiteners) {
        load(first);
        const int failed = factorise(factors, in.dim);
        if (failed != NONE) return component(first, failed);
        divide_lower(bartlett, factors, in.dim, whiteners);
        divide_lower(factors, bartlett, in.dim, roots);
        store_whiteners(first, out_whiteners);
        store_covariances(first, covariances);
        store_means(first, means);
        return NONE;
    }

    void store_whiteners(int first, double* out) const {
        const std::size_t dim = static_cast<std::size_t>(in.dim);
        for (int l = 0; l < LANES && first + l < in.n_components; l++) {
            double* to = out + static_cast<std::size_t>(first + l) * dim * dim;
            for (int i = 0; i < in.dim; i++, to += dim) {
                for (int j = 0; j <= i; j++) to[j] = whiteners.row(i)[j].of[l];
                std::fill(to + i + 1, to + dim, 0.0);
            }
        }
    }

    void store_covariances(int first, double* out) const {
        const std::size_t dim = static_cast<std::size_t>(in.dim);
        out += static_cast<std::size_t>(first) * dim * dim;
        for (std::size_t i = 0; i < dim; i++) {
            for (std::size_t j = 0; j <= i; j++) {
                const Lanes *one = roots.row(static_cast<int>(i)), *other = roots.row(static_cast<int>(j));
                Lanes sum{};
                for (std::size_t k = 0; k <= j; k++) add_product(sum, one[k], other[k]);
                for (int l = 0; l < LANES && first + l < in.n_components; l++) {
                    double* matrix = out + static_cast<std::size_t>(l) * dim * dim;
                    matrix[i * dim + j] = matrix[j * dim + i] = sum.of[l];
                }
            }
        }
    }

    void store_means(int first, double* out) const {
        const std::size_t dim = static_cast<std::size_t>(in.dim);
        for (int l = 0; l < LANES && first + l < in.n_components; l++) {
            const std::size_t component = static_cast<std::size_t>(first + l), at = component * dim;
            const double spread = std::sqrt(in.precisions[component]);
            for (int i = 0; i < in.dim; i++) {
                double away = 0.0;
                for (int k = 0; k <= i; k++) away += roots.row(i)[k].of[l] * in.noise[at + k];
                out[at + i] = in.means[at + i] + away / spread;
            }
        }
    }
};

}  // namespace

void conjugate_posterior(const ConjugateInput& in, double* means, double* precisions, double* scales) {
    const std::size_t dim = static_cast<std::size_t>(in.dim);
    std::vector<double> shift(dim), away(dim);
    for (std::size_t component = 0; component < static_cast<std::size_t>(in.n_components); component++) {
        const double count = in.counts[component], weight = count > 0.0 ? count : 1.0;
        const double *sums = in.sums + component * dim, *centres = in.centres + component * dim;
        const double precision = precisions[component] = 1.0 / in.gamma + count;
        const double share = count / precision, pull = count / (1.0 + in.gamma * count);
        for (std::size_t i = 0; i < dim; i++) {
            shift[i] = sums[i] / weight;
            away[i] = (count > 0.0 ? centres[i] + shift[i] : in.m[i]) - in.m[i];
            means[component * dim + i] = in.m[i] + share * away[i];
        }
        const double* scatter = in.scatters + component * dim * dim;
        double* scale = scales + component * dim * dim;
        for (std::size_t i = 0; i < dim; i++) {
            const double about = count * shift[i], pulled = pull * away[i];
            for (std::size_t j = 0; j < dim; j++) {
                const double centred = scatter[i * dim + j] - about * shift[j];
                scale[i * dim + j] = (in.scale[i * dim + j] + centred) + pulled * away[j];
            }
        }
    }
}

namespace {

// A thread takes as long to start as a million operations take.
int useful_threads(const DrawInput& input, int threads) {
    const double dim = input.dim, operations = input.n_components * dim * dim * dim;
    return std::clamp(threads, 1, static_cast<int>(std::min(1.0 + operations * 1e-6, MOST_THREADS)));
}

}  // namespace

int draw_parameters(const DrawInput& input, int threads, double* means, double* covariances,
                    double* whiteners) {
    const int n_groups = (input.n_components + LANES - 1) / LANES;
    threads = useful_threads(input, threads);
    std::vector<Draw> draws(static_cast<std::size_t>(threads), Draw(input));
    std::atomic<int> failed{input.n_components};
    Crew(threads).loop(static_cast<std::size_t>(n_groups), [&](std::size_t group, int worker) {
        Draw& draw = draws[static_cast<std::size_t>(worker)];
        const int bad = draw.run(static_cast<int>(group) * LANES, means, covariances, whiteners);
        for (int least = failed; bad != NONE && bad < least && !failed.compare_exchange_weak(least, bad);) {
        }
    });
    return failed == input.n_components ? NONE : failed.load();
}

}  // namespace dpmix
