// Gibbs step 1 for a piece: draws a label per event by inverting the cumulative sum of its weights, and
// computes its log likelihood. (Suchard et al. 2010, Appendix A, step 1.)
//
// Weights are added in the order of the components. The label is the first component at which the sum exceeds
// uniform * total. The result of an event depends on the event, the mixture and the key alone.
#pragma once

#include "evaluate.hpp"
#include "philox.hpp"

namespace dpmix {
namespace {

// The uniforms of the events of a tile, [U] vectors, from word `word` of the generator.
DPMIX_INLINE void tile_uniforms(const Piece& piece, const Key& key, const Tile& tile, Floats (&uniforms)[U],
                                int word = 0) {
    alignas(64) std::uint32_t low[TILE], high[TILE];
    for (int l = 0; l < TILE; l++) {
        const std::uint64_t event = piece.first_event + static_cast<std::uint64_t>(tile.places[l]);
        low[l] = static_cast<std::uint32_t>(event);
        high[l] = static_cast<std::uint32_t>(event >> 32);
    }
    for (int u = 0; u < U; u++)
        uniforms[u] = uniform(key, *(const Words*)(low + u * W), *(const Words*)(high + u * W), word);
}

// Replaces the log densities of the candidates by cumulative sums of weights; returns the totals.
DPMIX_INLINE void accumulate(const Mixture& mixture, Candidates& c, Floats (&totals)[U]) {
    const Floats floor = splat(-mixture.weight_floor);
    for (int u = 0; u < U; u++) totals[u] = Floats{};
    for (int q = 0; q < c.count; q++) {
        for (int u = 0; u < U; u++) {
            const Floats gap = c.logs[q * U + u] - c.best[u];
            totals[u] += gap > floor ? exp_negative(gap) : Floats{};
            c.logs[q * U + u] = totals[u];
        }
    }
}

// The label if uniform * total was rounded to the total: the last candidate at which the cumulative sum grew.
int last_with_weight(const Candidates& c, int l) {
    const int u = l / W, lane = l % W;
    int q = c.count - 1;
    while (q > 0 && c.logs[q * U + u][lane] == c.logs[(q - 1) * U + u][lane]) q--;
    return q;
}

// A far event, computed again in float64 with the same uniform.
void draw_far(const Mixture& mixture, const float* event, float uniform, double* weights,
              std::uint16_t& label, double& log_likelihood) {
    const FarEvent far = far_weights(mixture, event, weights);
    const double point = uniform * far.total;
    double sum = 0.0;
    for (int j = 0; j < mixture.n_components; j++) {
        if (weights[j] == 0.0) continue;
        sum += weights[j];
        label = static_cast<std::uint16_t>(j);
        if (sum > point) break;
    }
    log_likelihood = far.log_likelihood;
}

double draw_piece(const Mixture& mixture, const Piece& piece, const Key& key, double* log_likelihoods,
                  Scratch& scratch) {
    const Evaluate evaluate = evaluate_for(mixture.n_channels);
    Candidates c{(Floats*)scratch.logs, scratch.candidates, true, 0, -1, {}, 0.0};
    for_each_tile(piece, mixture.n_channels, [&](const Tile& tile) {
        evaluate(mixture, piece, tile, c);
        Floats uniforms[U], totals[U];
        tile_uniforms(piece, key, tile, uniforms);
        accumulate(mixture, c, totals);

        alignas(64) float best[TILE], uniform[TILE], log_totals[TILE];
        alignas(64) std::int32_t passed[TILE];  // candidates whose cumulative sum does not exceed the point
        for (int u = 0; u < U; u++) {
            const Floats point = uniforms[u] * totals[u];
            Ints count = {};
            for (int q = 0; q < c.count; q++) count -= (Ints)(c.logs[q * U + u] <= point);
            *(Ints*)(passed + u * W) = count;
            *(Floats*)(best + u * W) = c.best[u];
            *(Floats*)(uniform + u * W) = uniforms[u];
            *(Floats*)(log_totals + u * W) = log_positive(totals[u]);
        }
        for (int l = 0; l < tile.count; l++) {
            const int place = tile.places[l];
            if (best[l] < FAR) {
                draw_far(mixture, event_of(piece, mixture.n_channels, tile, l), uniform[l], scratch.weights,
                         piece.labels[place], log_likelihoods[place]);
                continue;
            }
            const int q = passed[l] < c.count ? passed[l] : last_with_weight(c, l);
            piece.labels[place] = static_cast<std::uint16_t>(c.list[q]);
            log_likelihoods[place] = static_cast<double>(best[l]) + log_totals[l];
        }
    });
    return c.work;
}

}  // namespace
}  // namespace dpmix
