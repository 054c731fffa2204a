// A tile: TILE events of a piece, transposed so that their values of a channel are consecutive.
#pragma once

#include "simd.hpp"

namespace dpmix {
namespace {

struct Tile {
    alignas(64) float x[MAX_CHANNELS * TILE];  // [D][TILE]
    int places[TILE];                          // in the chunk; the last one is repeated beyond the end
    int count;                                 // number of events
};

// Prefetches an event: in the order of their labels, events are scattered over the chunk.
DPMIX_INLINE void prefetch_event(const float* events, int place, int n_channels) {
    const char* event = (const char*)(events + static_cast<std::size_t>(place) * n_channels);
    for (int byte = 0; byte < 4 * n_channels; byte += 64) __builtin_prefetch(event + byte);
    __builtin_prefetch(event + 4 * n_channels - 1);
}

// Four channels of four events, from `first` on, channel by channel.
DPMIX_INLINE void turn(const float* const* rows, int first, float* turned) {
    typedef float Four __attribute__((vector_size(16), aligned(4)));
    const Four a = *(const Four*)(rows[0] + first), b = *(const Four*)(rows[1] + first);
    const Four c = *(const Four*)(rows[2] + first), d = *(const Four*)(rows[3] + first);
    const Four ab = __builtin_shufflevector(a, b, 0, 4, 1, 5), cd = __builtin_shufflevector(c, d, 0, 4, 1, 5);
    const Four AB = __builtin_shufflevector(a, b, 2, 6, 3, 7), CD = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    *(Four*)turned = __builtin_shufflevector(ab, cd, 0, 1, 4, 5);
    *(Four*)(turned + TILE) = __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
    *(Four*)(turned + 2 * TILE) = __builtin_shufflevector(AB, CD, 0, 1, 4, 5);
    *(Four*)(turned + 3 * TILE) = __builtin_shufflevector(AB, CD, 2, 3, 6, 7);
}

// The tile of the events order[from], ... of a piece. Prefetches the tile after the next.
DPMIX_INLINE void load_tile(const Piece& piece, int n_channels, int from, Tile& tile) {
    const int end = piece.count - 1;
    for (int l = 0; l < TILE; l++) {
        const int ahead = from + 2 * TILE + l;
        prefetch_event(piece.events, piece.order[ahead < end ? ahead : end], n_channels);
    }
    const float* rows[TILE];
    for (int l = 0; l < TILE; l++) {
        tile.places[l] = piece.order[from + l < end ? from + l : end];
        rows[l] = piece.events + static_cast<std::size_t>(tile.places[l]) * n_channels;
    }
    for (int l = 0; l < TILE; l += 4) {
        int i = 0;
        for (; i + 4 <= n_channels; i += 4) turn(rows + l, i, tile.x + i * TILE + l);
        for (; i < n_channels; i++) {
            for (int q = 0; q < 4; q++) tile.x[i * TILE + l + q] = rows[l + q][i];
        }
    }
    tile.count = piece.count - from < TILE ? piece.count - from : TILE;
}

// Calls body(tile) for the tiles of a piece in turn. A tile is loaded before the previous one is worked on:
// it is written by floats and read by vectors, and such a read stalls until the writes have reached the
// cache.
template <class Body>
DPMIX_INLINE void for_each_tile(const Piece& piece, int n_channels, Body body) {
    Tile tiles[2];
    load_tile(piece, n_channels, 0, tiles[0]);
    for (int from = 0, now = 0; from < piece.count; from += TILE, now ^= 1) {
        if (from + TILE < piece.count) load_tile(piece, n_channels, from + TILE, tiles[now ^ 1]);
        body(tiles[now]);
    }
}

// Event l of a tile in the chunk.
DPMIX_INLINE const float* event_of(const Piece& piece, int n_channels, const Tile& tile, int l) {
    return piece.events + static_cast<std::size_t>(tile.places[l]) * n_channels;
}

// The weight of the event at a place of the chunk.
DPMIX_INLINE float weight_at(const Piece& piece, int place) {
    return piece.weights == nullptr ? 1.0f : piece.weights[place];
}

}  // namespace
}  // namespace dpmix
