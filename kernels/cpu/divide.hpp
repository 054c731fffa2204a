// The division of a piece: assigns each event to one of two components, drawn by their responsibilities or
// given for all events, and sums the log probability of these sides, each times the weight of its event. (The
// restricted Gibbs scans of a split-merge move: Jain and Neal 2004, J. Comput. Graph. Stat. 13:158.)
//
// The weights of sides are as in a label draw: relative to the better side, and 0 below the floor.
#pragma once

#include "draw.hpp"

namespace dpmix {
namespace {

// A far event, computed again in float64 with the same uniform.
double divide_far(const Mixture& two, const float* event, float uniform, int given, std::uint8_t& side) {
    double weights[2];
    const FarEvent far = far_weights(two, event, weights);
    side = given >= 0 ? given : weights[1] > 0.0 && weights[0] <= uniform * far.total;
    return __builtin_log(weights[side] / far.total);
}

// `two` is a mixture of two components. `given` is the side of all events, or -1 to draw it with word `word`
// of the generator. Sides [count] are in the order of the piece.
double divide_piece(const Mixture& two, const Piece& piece, const Key& key, int word, int given,
                    std::uint8_t* sides, Scratch& scratch) {
    const Evaluate evaluate = evaluate_for(two.n_channels);
    Candidates c{(Floats*)scratch.logs, scratch.candidates, false, 0, -1, {}, 0.0};
    const Floats floor = splat(-two.weight_floor);
    double log_probability = 0.0;
    for_each_tile(piece, two.n_channels, [&](const Tile& tile) {
        evaluate(two, piece, tile, c);
        Floats uniforms[U];
        tile_uniforms(piece, key, tile, uniforms, word);

        alignas(64) float best[TILE], uniform[TILE], first[TILE], second[TILE], gaps[2][TILE],
            log_totals[TILE];
        for (int u = 0; u < U; u++) {
            Floats weights[2] = {};
            for (int q = 0; q < c.count; q++) {
                const Floats gap = c.logs[q * U + u] - c.best[u];
                weights[c.list[q]] = gap > floor ? exp_negative(gap) : Floats{};
                *(Floats*)(gaps[c.list[q]] + u * W) = gap;
            }
            *(Floats*)(best + u * W) = c.best[u];
            *(Floats*)(uniform + u * W) = uniforms[u];
            *(Floats*)(first + u * W) = weights[0];
            *(Floats*)(second + u * W) = weights[1];
            *(Floats*)(log_totals + u * W) = log_positive(weights[0] + weights[1]);
        }
        for (int l = 0; l < tile.count; l++, sides++) {
            const double weight = weight_at(piece, tile.places[l]);
            if (best[l] < FAR) {
                const float* event = event_of(piece, two.n_channels, tile, l);
                log_probability += weight * divide_far(two, event, uniform[l], given, *sides);
                continue;
            }
            const float point = uniform[l] * (first[l] + second[l]);
            *sides = given >= 0 ? given : second[l] > 0.0f && first[l] <= point;
            const bool none = (*sides ? second[l] : first[l]) == 0.0f;
            log_probability +=
                none ? -__builtin_inf() : weight * (static_cast<double>(gaps[*sides][l]) - log_totals[l]);
        }
    });
    return log_probability;
}

}  // namespace
}  // namespace dpmix
