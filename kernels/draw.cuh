// What both label draws share (draw_labels.cu, draw_sorted.cu): the tile of an event's label, from its cumulative
// sums at the ends of at most TILES tiles of components.
#pragma once

#include "far.cuh"
#include "mixture.cuh"
#include "philox.cuh"
#include "weights.cuh"

#ifndef TILES  // -D sets it only in benchmarks/cuda_variants.py
#define TILES 16
#endif

// The input of the second level for an event: the sum of its weights before `tile`.
struct __align__(16) Choice {
    float shift, before, point;
    int tile;  // -1: nothing to choose
};

// The tile in which the cumulative sum exceeds the point. `partial` holds the sums at the end of each tile.
__device__ __forceinline__ Choice choose_tile(const Weights* partial, int n_tiles, float shift, float bin,
                                              float point) {
    Choice choice{shift, 0.0f, point, 0};
    for (; choice.tile + 1 < n_tiles; choice.tile++) {
        const float sum = partial[choice.tile].sum_for(shift, bin);
        if (sum > point) break;
        choice.before = sum;
    }
    return choice;
}

// The mixture and the random key of a draw, and the arrays of a chunk.
struct Draw {
    const float* events;
    const double* exact;
    int n_components;
    float weight_floor;
    Key key;
    unsigned long long first_event;  // number of the chunk's first event
    unsigned short* labels;
    unsigned* far_count;
};

// Draws the tile of the label of the event at a place, or its label if the event is far (its tile is then -1).
// Returns its log likelihood; 0 for a far event without `exact`.
__device__ __forceinline__ double choose(const Draw& draw, int place, const Weights& sums,
                                         const Weights* partial, int n_tiles, Choice& choice) {
    const float u = uniform(draw.key, draw.first_event + place);
    choice.tile = -1;
    if (!sums.far()) {
        choice = choose_tile(partial, n_tiles, sums.shift, bin_of(draw.weight_floor), u * sums.sum);
        return sums.log_total();
    }
    if (draw.exact == nullptr) {
        atomicAdd(draw.far_count, 1u);
        draw.labels[place] = 0;
        return 0.0;
    }
    const float* event = draw.events + (size_t)place * PADDED_DIM;
    const FarTotal far = far_total(event, draw.exact, draw.n_components, draw.weight_floor);
    draw.labels[place] =
        (unsigned short)far_label(event, draw.exact, draw.n_components, draw.weight_floor, far, u);
    return far.best + log(far.total);
}
