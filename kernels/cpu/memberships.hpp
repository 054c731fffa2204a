// Memberships of a piece: computes the probability of each population for each event, and the event's log
// density. A population is a set of components; its probability is the sum of their responsibilities.
//
// Weights are added in the order of the components, separately in each lane. So the result of an event
// depends on the event, the mixture and the populations alone. Labels, if the piece has them, become the most
// probable components.
#pragma once

#include "expect.hpp"

namespace dpmix {
namespace {

// A far event, computed again in float64. Writes its memberships and its most probable component.
double memberships_far(const Mixture& mixture, const Populations& populations, const float* event,
                       double* weights, float* row, int& best) {
    const FarEvent far = far_weights(mixture, event, weights);
    best = far.best;
    for (int p = 0; p < populations.count; p++) row[p] = 0.0f;
    for (int j = 0; j < mixture.n_components; j++)
        row[populations.of[j]] += static_cast<float>(weights[j] / far.total);
    return far.log_likelihood;
}

double memberships_piece(const Mixture& mixture, const Piece& piece, const Populations& populations,
                         float* memberships, double* log_densities, Scratch& scratch) {
    const Evaluate evaluate = evaluate_for(mixture.n_channels);
    const int P = populations.count;
    Candidates c{(Floats*)scratch.logs, scratch.candidates, false, 0, -1, {}, 0.0};
    Floats* sums = (Floats*)scratch.sums;
    for_each_tile(piece, mixture.n_channels, [&](const Tile& tile) {
        evaluate(mixture, piece, tile, c);
        Ints labels[U] = {};
        Floats totals[U];
        if (piece.labels != nullptr) most_probable(c, labels);
        weigh(mixture, c, totals);
        for (int i = 0; i < P * U; i++) sums[i] = Floats{};
        for (int q = 0; q < c.count; q++) {
            Floats* own = sums + populations.of[c.list[q]] * U;
            for (int u = 0; u < U; u++) own[u] += c.logs[q * U + u];
        }
        for (int p = 0; p < P; p++) {
            for (int u = 0; u < U; u++) sums[p * U + u] /= totals[u];
        }

        alignas(64) float best[TILE], log_totals[TILE];
        alignas(64) std::int32_t label[TILE];
        for (int u = 0; u < U; u++) {
            *(Ints*)(label + u * W) = labels[u];
            *(Floats*)(best + u * W) = c.best[u];
            *(Floats*)(log_totals + u * W) = log_positive(totals[u]);
        }
        for (int l = 0; l < tile.count; l++) {
            const int place = tile.places[l];
            float* row = memberships + static_cast<std::size_t>(place) * P;
            int component = c.list[label[l]];
            if (best[l] < FAR) {
                const float* event = event_of(piece, mixture.n_channels, tile, l);
                log_densities[place] =
                    memberships_far(mixture, populations, event, scratch.weights, row, component);
            } else {
                for (int p = 0; p < P; p++) row[p] = scratch.sums[p * TILE + l];
                log_densities[place] = static_cast<double>(best[l]) + log_totals[l];
            }
            if (piece.labels != nullptr) piece.labels[place] = static_cast<std::uint16_t>(component);
        }
    });
    return c.work;
}

}  // namespace
}  // namespace dpmix
