// Sums of memberships over draws, for dpmix.populations.assign.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dpmix {

// Memberships of events in one draw, and the factors that make them the sample's.
struct DrawMemberships {
    std::size_t n_events;
    int n_populations;
    const float* memberships;  // [event][population]
    const float* ratios;       // [population]
};

// Adds the memberships, times the ratios and divided by their sum, to `total` [population][event]. Draws the
// population of each event by them with its uniform [event], and adds to `counts` [population]. Each uniform
// is then rotated by the golden ratio: it is uniform in the next draw, too, and spread evenly over the draws.
void add_memberships(const DrawMemberships& draw, int threads, float* uniforms, float* total,
                     std::int64_t* counts);

}  // namespace dpmix
