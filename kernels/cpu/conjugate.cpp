#include "conjugate.hpp"

#include <algorithm>
#include <atomic>
#include <vector>

#include "parallel.hpp"

namespace dpmix {

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

constexpr double MOST_THREADS = 16.0;

// A thread takes as long to start as a million operations take.
int useful_threads(const DrawInput& input, int threads) {
    const double dim = input.dim, operations = input.n_components * dim * dim * dim;
    return std::clamp(threads, 1, static_cast<int>(std::min(1.0 + operations * 1e-6, MOST_THREADS)));
}

double total(const Lanes& lanes) {
    double sum = 0.0;
    for (double value : lanes.of) sum += value;
    return sum;
}

}  // namespace

int draw_parameters(const Sweep& sweep, const DrawInput& input, int threads, const Drawn& out) {
    const int n_groups = (input.n_components + GROUP - 1) / GROUP;
    threads = useful_threads(input, threads);
    const std::size_t scratch = static_cast<std::size_t>(4 * triangle(0, input.dim));
    std::vector<Lanes> scratches(static_cast<std::size_t>(threads) * scratch);
    std::atomic<int> failed{input.n_components};
    Crew(threads).loop(static_cast<std::size_t>(n_groups), [&](std::size_t group, int worker) {
        Lanes* own = scratches.data() + static_cast<std::size_t>(worker) * scratch;
        const int bad = sweep.draw_group(input, static_cast<int>(group) * GROUP, own, out);
        for (int least = failed; bad >= 0 && bad < least && !failed.compare_exchange_weak(least, bad);) {
        }
    });
    return failed == input.n_components ? -1 : failed.load();
}

int whiteners_of(const Sweep& sweep, int n_matrices, int dim, const double* matrices, double* whiteners) {
    const std::size_t size = static_cast<std::size_t>(dim) * static_cast<std::size_t>(dim);
    std::vector<Lanes> scratch(static_cast<std::size_t>(3 * triangle(0, dim)));
    for (int first = 0; first < n_matrices; first += GROUP) {
        const std::size_t at = static_cast<std::size_t>(first) * size;
        const int count = std::min(GROUP, n_matrices - first);
        const int failed = sweep.whiten_group(matrices + at, count, dim, scratch.data(), whiteners + at);
        if (failed >= 0) return first + failed;
    }
    return -1;
}

double sum_components(const Sweep& sweep, const ComponentsInput& input, double* precision, double* shift) {
    const std::size_t dim = static_cast<std::size_t>(input.dim), size = dim * (dim + 1) / 2;
    std::vector<Lanes> precisions(size), shifts(dim), scratch(size + 2 * dim);
    Lanes spread{};
    const LaneSums sums{precisions.data(), shifts.data(), &spread};
    for (int first = 0; first < input.n_held; first += GROUP)
        sweep.sum_group(input, first, scratch.data(), sums);
    for (std::size_t a = 0, at = 0; a < dim; a++) {
        shift[a] = total(shifts[a]);
        for (std::size_t b = 0; b <= a; b++, at++)
            precision[a * dim + b] = precision[b * dim + a] = total(precisions[at]);
    }
    return total(spread);
}

}  // namespace dpmix
