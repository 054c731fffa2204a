// The E step for a piece: computes responsibilities of its events, their moments by component, and the most
// probable component of each event as its label. (Bayesian EM; Suchard et al. 2010.)
//
// The responsibilities of a block of tiles, times the weights of the events, are stored as entries (event, r).
// The entries of one component in one tile are a segment, and the segments of a component are linked. When the
// block is full, each component's entries are taken together, in the order of the events with far events last,
// and summed as drawn events are (moments.hpp).
//
// Blocks end after the same events for any width of a tile, so that all instruction sets add in the same order.
#pragma once

#include "draw.hpp"
#include "moments.hpp"

namespace dpmix {
namespace {

constexpr int BLOCK = 1024;  // largest number of events in a block

class Block {
    const Mixture& mixture_;
    const Piece& piece_;
    Scratch& scratch_;
    int n_entries_ = 0, n_segments_ = 0, n_events_ = 0, n_far_ = 0;
    std::uint16_t far_[BLOCK];  // places of the far events

   public:
    DPMIX_INLINE Block(const Mixture& mixture, const Piece& piece, Scratch& scratch)
        : mixture_(mixture), piece_(piece), scratch_(scratch) {
        for (int j = 0; j < mixture.n_components; j++) scratch.heads[j] = -1;
    }

    // True if MAX_TILE more events may not fit. Asked after every MAX_TILE events.
    bool full() const {
        if (n_events_ % MAX_TILE != 0) return false;
        return n_events_ == BLOCK ||
               n_entries_ + (n_far_ + MAX_TILE) * mixture_.n_components > scratch_.capacity;
    }
    void count_events(int count) { n_events_ += count; }

    // Keeps a far event for the end of the block.
    void add_far(int place) { far_[n_far_++] = static_cast<std::uint16_t>(place); }

    DPMIX_INLINE void add_entry(int place, float share) {
        scratch_.entries[n_entries_] = static_cast<std::uint16_t>(place);
        scratch_.shares[n_entries_] = share;
        n_entries_++;
    }

    // Makes a segment of the entries since the last segment.
    DPMIX_INLINE void end_segment(int component) {
        const int start = n_segments_ == 0 ? 0 : scratch_.starts[n_segments_];
        if (n_entries_ == start) return;
        const int segment = n_segments_++;
        scratch_.starts[0] = 0;
        scratch_.starts[n_segments_] = n_entries_;
        scratch_.nexts[segment] = -1;
        if (scratch_.heads[component] < 0) scratch_.heads[component] = segment;
        else scratch_.nexts[scratch_.tails[component]] = segment;
        scratch_.tails[component] = segment;
    }

    // Adds the entries to the moments and empties the block. Returns the log likelihood of the far events.
    double flush(double* moments, std::uint8_t* touched) {
        double log_likelihood = 0.0;
        for (int i = 0; i < n_far_; i++) log_likelihood += expect_far(far_[i]);
        const int size = moment_size(mixture_.n_channels);
        for (int j = 0; j < mixture_.n_components; j++) {
            if (scratch_.heads[j] < 0) continue;
            double* own = moments + static_cast<std::size_t>(j) * size;
            if (!touched[j]) {
                for (int i = 0; i < size; i++) own[i] = 0.0;
                touched[j] = 1;
            }
            add_component(j, own);
            scratch_.heads[j] = -1;
        }
        n_entries_ = n_segments_ = n_events_ = n_far_ = 0;
        return log_likelihood;
    }

   private:
    // A far event, computed again in float64.
    double expect_far(int place) {
        const float* event = piece_.events + static_cast<std::size_t>(place) * mixture_.n_channels;
        const FarEvent far = far_weights(mixture_, event, scratch_.weights);
        for (int j = 0; j < mixture_.n_components; j++) {
            const float share =
                static_cast<float>(scratch_.weights[j] / far.total) * weight_at(piece_, place);
            if (share > 0.0f) add_entry(place, share);
            end_segment(j);
        }
        piece_.labels[place] = static_cast<std::uint16_t>(far.best);
        return far.log_likelihood * weight_at(piece_, place);
    }

    void add_component(int component, double* moments) {
        const int D = mixture_.n_channels, width = padded_width(D);
        const float* centre = mixture_.centres + static_cast<std::size_t>(component) * width;
        float *left = scratch_.rows, *right = scratch_.rows + GROUP * width;
        int count = 0;
        for (int s = scratch_.heads[component]; s >= 0; s = scratch_.nexts[s]) {
            for (int e = scratch_.starts[s]; e < scratch_.starts[s + 1]; e++) {
                const float* event = piece_.events + std::size_t{scratch_.entries[e]} * D;
                float *z = left + count * width, *weighted = right + count * width;
                centre_event(event, centre, D, z);
                scale_event(z, scratch_.shares[e], D, weighted);
                if (++count == GROUP) {
                    add_group(left, right, count, D, moments);
                    count = 0;
                }
            }
        }
        if (count > 0) add_group(left, right, count, D, moments);
    }
};

// Replaces the log densities of the candidates by weights; returns the totals.
DPMIX_INLINE void weigh(const Mixture& mixture, Candidates& c, Floats (&totals)[U]) {
    const Floats floor = splat(-mixture.weight_floor);
    for (int u = 0; u < U; u++) totals[u] = Floats{};
    for (int q = 0; q < c.count; q++) {
        for (int u = 0; u < U; u++) {
            const Floats gap = c.logs[q * U + u] - c.best[u];
            const Floats weight = gap > floor ? exp_negative(gap) : Floats{};
            totals[u] += weight;
            c.logs[q * U + u] = weight;
        }
    }
}

// The first candidate with the largest log density; to be called before `weigh`.
DPMIX_INLINE void most_probable(const Candidates& c, Ints (&places)[U]) {
    for (int u = 0; u < U; u++) places[u] = Ints{};
    for (int q = c.count - 1; q >= 0; q--) {
        for (int u = 0; u < U; u++) places[u] = c.logs[q * U + u] == c.best[u] ? q - Ints{} : places[u];
    }
}

double expect_piece(const Mixture& mixture, const Piece& piece, double* moments, std::uint8_t* touched,
                    double* log_likelihood, Scratch& scratch) {
    const Evaluate evaluate = evaluate_for(mixture.n_channels);
    Candidates c{(Floats*)scratch.logs, scratch.candidates, false, 0, -1, {}, 0.0};
    Block block(mixture, piece, scratch);
    *log_likelihood = 0.0;
    for_each_tile(piece, mixture.n_channels, [&](const Tile& tile) {
        evaluate(mixture, piece, tile, c);
        if (block.full()) *log_likelihood += block.flush(moments, touched);
        block.count_events(tile.count);

        Ints labels[U];
        Floats totals[U], inverses[U];
        most_probable(c, labels);
        weigh(mixture, c, totals);
        alignas(64) float best[TILE], log_totals[TILE], inverse[TILE];  // inverse: 0 if none or far
        alignas(64) std::int32_t label[TILE];
        for (int u = 0; u < U; u++) {
            *(Ints*)(label + u * W) = labels[u];
            *(Floats*)(best + u * W) = c.best[u];
            *(Floats*)(log_totals + u * W) = log_positive(totals[u]);
            *(Floats*)(inverse + u * W) = splat(1.0f) / totals[u];
        }
        for (int l = 0; l < TILE; l++) {
            if (l >= tile.count || best[l] < FAR) {
                inverse[l] = 0.0f;
                if (l < tile.count) block.add_far(tile.places[l]);
                continue;
            }
            const float weight = weight_at(piece, tile.places[l]);
            inverse[l] *= weight;
            *log_likelihood += weight * (static_cast<double>(best[l]) + log_totals[l]);
            piece.labels[tile.places[l]] = static_cast<std::uint16_t>(c.list[label[l]]);
        }
        for (int u = 0; u < U; u++) inverses[u] = *(const Floats*)(inverse + u * W);
        for (int q = 0; q < c.count; q++) {
            for (int u = 0; u < U; u++) {
                const Floats shares = c.logs[q * U + u] * inverses[u];
                for (unsigned lanes = greater(shares, Floats{}); lanes != 0; lanes &= lanes - 1) {
                    const int lane = __builtin_ctz(lanes);
                    block.add_entry(tile.places[u * W + lane], shares[lane]);
                }
            }
            block.end_segment(c.list[q]);
        }
    });
    *log_likelihood += block.flush(moments, touched);
    return c.work;
}

}  // namespace
}  // namespace dpmix
