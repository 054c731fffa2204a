// The candidates of a tile of events: the components that can have weight, with their log densities.
// Evaluation is dense or pruned.
//
// The weight of component j for an event is exp(l_j - max l) if l_j - max l > -floor, and exactly 0
// otherwise. A dense evaluation computes the whole whitening of every component. A pruned one takes the best
// log density so far from the components of the events' last labels. Then, stage by stage (stages_of), it
// compares each component's partial sum of squares with that and drops components without weight, a whole
// tile at a time and without a branch that is hard to predict. A rounded partial sum never exceeds the
// rounded whole, so dropped components have weight 0. Both evaluations give the same weights bit for bit, and
// the candidates in the order of their index.
#pragma once

#include "tile.hpp"
#include "whiten.hpp"

namespace dpmix {
namespace {

// Added to the weight floor: a little more than the float32 rounding of a log density near FAR (0.004).
constexpr float MARGIN = 0.01f;
constexpr float LOWEST = -1.0e30f;
constexpr int MAX_SEEDS = 4;

struct Candidates {
    Floats* logs;  // [count][U] log densities
    int* list;     // [count] components
    int count;
    Floats best[U];  // largest log density; LOWEST if all overflowed
    double work;     // multiplications per event
};

// Does one stage for the components of the list (the first stage: for all), and returns the number that is
// kept. Partial sums stay at the index of their component, so no store depends on earlier drops. The log
// densities of the last stage are stored without gaps.
template <bool Last, class Rows>
DPMIX_INLINE int keep(const Rows rows, const float* params, const Mixture& mixture, Candidates& c) {
    const Floats margin = splat(mixture.weight_floor + MARGIN);
    const int size = stage_size(rows.first, rows.last);
    const int count = rows.first == 0 ? mixture.n_components : c.count;
    Floats best[U], threshold[U];
    for (int u = 0; u < U; u++) {
        best[u] = c.best[u];
        threshold[u] = best[u] - margin;
    }
    int kept = 0;
    for (int q = 0; q < count; q++) {
        const int j = rows.first == 0 ? q : c.list[q];
        Floats sums[U];
        for (int u = 0; u < U; u++) sums[u] = rows.first == 0 ? Floats{} : c.logs[j * U + u];
        rows.add_squares(params + static_cast<std::size_t>(j) * size, sums);
        const Floats constant = splat(mixture.constants[j]);
        unsigned any = 0;
        DPMIX_UNROLL
        for (int u = 0; u < U; u++) {
            const Floats log_density = constant - sums[u];
            any |= greater(log_density, threshold[u]);
            c.logs[(Last ? kept : j) * U + u] = Last ? log_density : sums[u];
            if (Last) {
                best[u] = larger(log_density, best[u]);
                threshold[u] = best[u] - margin;
            }
        }
        c.list[kept] = j;
        kept += any != 0;
    }
    for (int u = 0; u < U; u++) c.best[u] = best[u];
    c.work += static_cast<double>(count) * triangle(rows.first, rows.last);
    return kept;
}

// Drops the candidates that have no weight because of a better one found later.
DPMIX_INLINE void drop(const Mixture& mixture, Candidates& c) {
    int kept = 0;
    for (int q = 0; q < c.count; q++) {
        unsigned any = 0;
        for (int u = 0; u < U; u++) {
            const Floats log_density = c.logs[q * U + u];
            any |= greater(log_density, c.best[u] - splat(mixture.weight_floor + MARGIN));
            c.logs[kept * U + u] = log_density;
        }
        c.list[kept] = c.list[q];
        kept += any != 0;
    }
    c.count = kept;
}

// Raises `best` to the log densities of the components of the events' last labels.
template <class Form>
DPMIX_INLINE void seed(const Form& form, const Mixture& mixture, const Piece& piece, const int* places,
                       Candidates& c) {
    int last = -1, tried = 0;
    for (int l = 0; l < TILE; l++) {
        const int j = piece.now[piece.labels[places[l]]];
        if (j == last) continue;
        last = j;
        if (++tried > MAX_SEEDS) break;
        form.whole([&](auto rows) {
            Floats sums[U] = {};
            rows.add_squares(mixture.whole + static_cast<std::size_t>(j) * stage_size(0, rows.last), sums);
            for (int u = 0; u < U; u++) c.best[u] = larger(splat(mixture.constants[j]) - sums[u], c.best[u]);
            c.work += triangle(0, rows.last);
        });
    }
}

template <class Form>
void evaluate(const Mixture& mixture, const Piece& piece, const Tile& tile, Candidates& c) {
    const Form form(tile.x, mixture.n_channels);
    for (int u = 0; u < U; u++) c.best[u] = splat(LOWEST);
    if (!piece.pruned) {
        c.count = form.whole([&](auto rows) { return keep<true>(rows, mixture.whole, mixture, c); });
        drop(mixture, c);
        return;
    }
    seed(form, mixture, piece, tile.places, c);
    const Stages stages = stages_of(mixture.n_channels);
    const float* params = mixture.staged;
    for (int g = 0; g < stages.count; g++) {
        c.count = form.stage(g, [&](auto rows) {
            if (rows.last == form.n_channels()) return keep<true>(rows, params, mixture, c);
            return keep<false>(rows, params, mixture, c);
        });
        params += static_cast<std::size_t>(mixture.n_components) *
                  stage_size(stages.bounds[g], stages.bounds[g + 1]);
    }
}

using Evaluate = void (*)(const Mixture&, const Piece&, const Tile&, Candidates&);

// The form for D channels: unrolled up to 32 if vectors are wide enough for that to pay, otherwise general.
Evaluate evaluate_for(int n_channels) {
#if defined(__AVX2__)
    // clang-format off
#define DPMIX_CASE(D) case D: return evaluate<Fixed<D>>;
#define DPMIX_CASES(D) DPMIX_CASE(D) DPMIX_CASE(D + 1) DPMIX_CASE(D + 2) DPMIX_CASE(D + 3)
    switch (n_channels) {
        DPMIX_CASES(1) DPMIX_CASES(5) DPMIX_CASES(9) DPMIX_CASES(13)
        DPMIX_CASES(17) DPMIX_CASES(21) DPMIX_CASES(25) DPMIX_CASES(29)
        default: break;
    }
// clang-format on
#undef DPMIX_CASES
#undef DPMIX_CASE
#endif
    (void)n_channels;
    return evaluate<General>;
}

}  // namespace
}  // namespace dpmix
