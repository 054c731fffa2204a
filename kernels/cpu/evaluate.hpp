// The candidates of a tile of events: the components that can have weight, with their log densities.
// Evaluation is dense or pruned.
//
// The weight of component j for an event is exp(l_j - max l) if l_j - max l > -floor, and exactly 0
// otherwise. A dense evaluation computes the whole whitening of every component. A pruned one takes the best
// log density so far from the components of the events' last labels. Then it drops components without weight,
// a whole tile at a time and without a branch that is hard to predict: first those whose largest log density
// is too low, which is their constant or, if all events of the tile had the same last label, lower by a bound
// of their distance (clearance.hpp), then, stage by stage (stages_of), those whose partial sum of squares
// is too large. A rounded partial sum never exceeds the rounded whole, so dropped components have weight 0.
// Both evaluations give the same weights bit for bit, and the candidates in the order of their index.
//
// A label draw only adds the weights in that order (draw.hpp). There a component also has no effect, and is
// dropped, if an earlier one has more than 2^25 times its weight: the float32 sum so far is then so large
// that adding the weight does not change it. Most components are empty, light and late in the order, so this
// drops more than the floor does.
#pragma once

#include "tile.hpp"
#include "whiten.hpp"

namespace dpmix {
namespace {

// Added to the weight floor and to SILENT: a little more than the float32 rounding of a log density near FAR
// (0.004).
constexpr float MARGIN = 0.01f;
constexpr float SILENT = 17.33f;  // nats: a little more than 25 log 2 = 17.3287
constexpr float LOWEST = -1.0e30f;
constexpr int MAX_SEEDS = 4;

struct Candidates {
    Floats* logs;     // [count][U] log densities
    int* list;        // [count] components
    bool cumulative;  // only cumulative sums of the weights are needed
    int count;
    int last_seed;   // the last of the components that `best` comes from before the evaluation; -1 for none
    Floats best[U];  // largest log density; LOWEST if all overflowed
    double work;     // multiplications per event
    int near = -1;   // the component of the last labels of all events, -1 if they differ
    float radius = 0.0f;  // largest |y| of the events from it
};

// How far below the best log density, and below the best one of an earlier component, a component has no
// effect.
struct Margins {
    Floats weight, silent;

    DPMIX_INLINE Margins(const Mixture& mixture, const Candidates& c) {
        const float floor = mixture.weight_floor;
        weight = splat(floor + MARGIN);
        silent = splat((c.cumulative && floor > SILENT ? SILENT : floor) + MARGIN);
    }
};

// Lists the components that their largest log densities do not rule out, and returns their number.
DPMIX_INLINE int list_possible(const Mixture& mixture, Candidates& c) {
    const Margins margins(mixture, c);
    float low = lowest(c.best[0]);
    for (int u = 1; u < U; u++) low = low < lowest(c.best[u]) ? low : lowest(c.best[u]);
    const Clearances& clear = mixture.clearances;
    const int row = c.near < 0 || clear.rows == nullptr ? -1 : clear.rows[c.near];
    const std::size_t start = row < 0 ? 0 : static_cast<std::size_t>(row) * clear.stride;
    int count = 0;
    for (int from = 0; from < mixture.n_components; from += W) {
        Floats constants = *(const FloatsAnywhere*)(mixture.constants + from);
        if (row >= 0) {
            const Floats distances = *(const Floats*)(clear.distances + start + from);
            const Floats widenings = *(const Floats*)(clear.widenings + start + from);
            const Floats least = larger(distances - widenings * splat(c.radius), Floats{});
            constants -= least * least;
        }
        const Floats threshold = splat(low) - (from > c.last_seed ? margins.silent : margins.weight);
        for (unsigned some = greater(constants, threshold); some != 0; some &= some - 1)
            c.list[count++] = from + __builtin_ctz(some);
    }
    return count;
}

// Does one stage, or all rows, for the components of the list, and returns the number that is kept. A dense
// evaluation has no list and takes all components. Partial sums stay at the index of their component, so no
// store depends on earlier drops. The log densities of the last stage are stored without gaps.
template <bool Last, class Rows>
DPMIX_INLINE int keep(const Rows rows, const float* params, const Mixture& mixture, Candidates& c) {
    const Margins margins(mixture, c);
    const int size = stage_size(rows.first, rows.last);
    const bool all = Last && rows.first == 0;
    const int count = all ? mixture.n_components : c.count;
    Floats best[U], before[U];  // before: of the components before j
    for (int u = 0; u < U; u++) {
        best[u] = c.best[u];
        before[u] = splat(LOWEST);
    }
    int kept = 0;
    for (int q = 0; q < count; q++) {
        const int j = all ? q : c.list[q];
        const bool seeded = all || j > c.last_seed;  // all that `best` comes from lies before j
        Floats sums[U];
        for (int u = 0; u < U; u++) sums[u] = rows.first == 0 ? Floats{} : c.logs[j * U + u];
        rows.add_squares(params + static_cast<std::size_t>(j) * size, sums);
        const Floats constant = splat(mixture.constants[j]);
        unsigned any = 0;
        DPMIX_UNROLL
        for (int u = 0; u < U; u++) {
            const Floats log_density = constant - sums[u];
            const Floats threshold = seeded ? best[u] - margins.silent
                                            : larger(best[u] - margins.weight, before[u] - margins.silent);
            any |= greater(log_density, threshold);
            c.logs[(Last ? kept : j) * U + u] = Last ? log_density : sums[u];
            if (Last) {
                best[u] = larger(log_density, best[u]);
                before[u] = larger(log_density, before[u]);
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
    Floats largest = {};
    for (int l = 0; l < TILE; l++) {
        const int j = piece.now[piece.labels[places[l]]];
        if (j == last) continue;
        last = j;
        if (++tried > MAX_SEEDS) break;
        c.last_seed = j > c.last_seed ? j : c.last_seed;
        form.whole([&](auto rows) {
            Floats sums[U] = {};
            rows.add_squares(mixture.whole + static_cast<std::size_t>(j) * stage_size(0, rows.last), sums);
            for (int u = 0; u < U; u++) {
                c.best[u] = larger(splat(mixture.constants[j]) - sums[u], c.best[u]);
                largest = larger(sums[u], largest);
            }
            c.work += triangle(0, rows.last);
        });
    }
    c.near = tried == 1 ? last : -1;
    c.radius = __builtin_sqrtf(-lowest(-largest));
}

template <class Form>
void evaluate(const Mixture& mixture, const Piece& piece, const Tile& tile, Candidates& c) {
    const Form form(tile.x, mixture.n_channels);
    c.last_seed = -1;
    for (int u = 0; u < U; u++) c.best[u] = splat(LOWEST);
    if (!piece.pruned) {
        c.count = form.whole([&](auto rows) { return keep<true>(rows, mixture.whole, mixture, c); });
        drop(mixture, c);
        return;
    }
    seed(form, mixture, piece, tile.places, c);
    c.count = list_possible(mixture, c);
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
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)  // with checks, these take longest to compile:
        DPMIX_CASES(1) DPMIX_CASES(5) DPMIX_CASE(10) DPMIX_CASES(14)  // those that tests run
#else
        DPMIX_CASES(1) DPMIX_CASES(5) DPMIX_CASES(9) DPMIX_CASES(13)
        DPMIX_CASES(17) DPMIX_CASES(21) DPMIX_CASES(25) DPMIX_CASES(29)
#endif
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
