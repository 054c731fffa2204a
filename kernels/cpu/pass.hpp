// The state of a pass, and helpers of the passes (pass_*.cpp).
#pragma once

#include <algorithm>

#include "engine.hpp"
#include "parallel.hpp"

namespace dpmix {

constexpr std::size_t BUDGET = std::size_t{64} << 20;  // bytes of batch scratch

// The state of one pass over the labels of a chain.
struct Engine::Pass {
    const PackedMixture& packed;
    Chain& chain;
    const std::uint16_t* now;  // of the pieces (sweep.hpp)
    Passage passage;
    std::vector<Scratch> scratch;  // by thread
    BatchScratch& batch;
    Crew crew;
    std::vector<Work> work;  // by task; empty in divide
};

// Adds `numbers` to `to`, element by element.
inline void add(const double* numbers, std::size_t n, double* to) {
    for (std::size_t i = 0; i < n; i++) to[i] += numbers[i];
}

// Moves the moments of a component together, without padding.
inline void pack(double* moments, int n_channels) {
    for (int row = 1; row <= n_channels; row++) {
        const double* from = moments + moment_row(row);
        double* to = moments + triangle(0, row);
        for (int i = 0; i <= row; i++) to[i] = from[i];  // so few that a call of memmove would take longer
    }
}

}  // namespace dpmix
