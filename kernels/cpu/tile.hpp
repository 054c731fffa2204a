// A tile: 16 events of a piece, turned so that a channel's 16 values lie together.
#pragma once

#include "simd.hpp"

namespace dpmix {
namespace {

struct Tile {
    alignas(64) float x[MAX_CHANNELS * TILE];  // [D][TILE]
    int places[TILE];                          // in the chunk; the last is repeated where events run out
    int count;                                 // events that are there
};

// Tile of the events order[from] ... of a piece. Events are gathered: in the order of their last label they lie
// scattered over the chunk, so those of the tile after the next are asked for in advance.
DPMIX_INLINE void load_tile(const Piece& piece, int n_channels, int from, Tile& tile) {
    const int end = piece.count - 1;
    for (int l = 0; l < TILE; l++) {
        const int ahead = from + 2 * TILE + l;
        const char* row = (const char*)(piece.events + std::size_t{piece.order[ahead < end ? ahead : end]} * n_channels);
        for (int byte = 0; byte < 4 * n_channels; byte += 64) __builtin_prefetch(row + byte);
        __builtin_prefetch(row + 4 * n_channels - 1);
    }
    for (int l = 0; l < TILE; l++) {
        const int place = piece.order[from + l < end ? from + l : end];
        const float* event = piece.events + static_cast<std::size_t>(place) * n_channels;
        for (int i = 0; i < n_channels; i++) tile.x[i * TILE + l] = event[i];
        tile.places[l] = place;
    }
    tile.count = piece.count - from < TILE ? piece.count - from : TILE;
}

// Event l of a tile, as it lies in the chunk.
DPMIX_INLINE const float* event_of(const Piece& piece, int n_channels, const Tile& tile, int l) {
    return piece.events + static_cast<std::size_t>(tile.places[l]) * n_channels;
}

}  // namespace
}  // namespace dpmix
