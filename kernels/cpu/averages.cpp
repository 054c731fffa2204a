#include "averages.hpp"

#include <algorithm>
#include <vector>

namespace dpmix {
namespace {

constexpr int LANES = 16;                // events that are computed together
constexpr float GOLDEN = 0.6180339887f;  // fractional part of the golden ratio: its multiples spread evenly

// Adds events at ..., at + n - 1, n <= LANES; terms is [population][LANES].
inline void add_lanes(const DrawMemberships& draw, std::size_t at, int n, float* terms, float* uniforms,
                      float* total, std::int64_t* counts) {
    const int P = draw.n_populations;
    float whole[LANES] = {}, end[LANES] = {}, limit[LANES];
    int drawn[LANES] = {};
    const float* rows = draw.memberships + at * P;
    for (int p = 0; p < P; p++) {
        for (int l = 0; l < n; l++) terms[p * LANES + l] = rows[l * P + p] * draw.ratios[p];
        for (int l = 0; l < n; l++) whole[l] += terms[p * LANES + l];
    }
    for (int l = 0; l < n; l++) {
        limit[l] = uniforms[at + l] * whole[l];
        const float next = uniforms[at + l] + GOLDEN;
        uniforms[at + l] = next < 1.0f ? next : next - 1.0f;
    }
    for (int p = 0; p < P; p++) {
        float* sums = total + p * draw.n_events + at;
        for (int l = 0; l < n; l++) {
            end[l] += terms[p * LANES + l];
            drawn[l] += end[l] <= limit[l] ? 1 : 0;
            sums[l] += terms[p * LANES + l] / whole[l];
        }
    }
    for (int l = 0; l < n; l++) counts[std::min(drawn[l], P - 1)]++;
}

}  // namespace

void add_memberships(const DrawMemberships& draw, float* uniforms, float* total, std::int64_t* counts) {
    std::vector<float> terms(static_cast<std::size_t>(draw.n_populations) * LANES);
    std::size_t at = 0;
    for (; at + LANES <= draw.n_events; at += LANES)
        add_lanes(draw, at, LANES, terms.data(), uniforms, total, counts);
    add_lanes(draw, at, static_cast<int>(draw.n_events - at), terms.data(), uniforms, total, counts);
}

}  // namespace dpmix
