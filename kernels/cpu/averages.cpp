#include "averages.hpp"

#include <algorithm>
#include <vector>

#include "parallel.hpp"

namespace dpmix {
namespace {

constexpr int LANES = 16;                // events that are computed together
constexpr std::size_t TASK = 4096;       // events; a multiple of LANES
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

void add_memberships(const DrawMemberships& draw, int threads, float* uniforms, float* total,
                     std::int64_t* counts) {
    const std::size_t P = static_cast<std::size_t>(draw.n_populations);
    const std::size_t n_tasks = (draw.n_events + TASK - 1) / TASK;
    const int workers = std::clamp(static_cast<int>(n_tasks), 1, threads);
    struct Worker {
        std::vector<float> terms;
        std::vector<std::int64_t> counts;
    };
    std::vector<Worker> own(static_cast<std::size_t>(workers),
                            {std::vector<float>(P * LANES), std::vector<std::int64_t>(P)});
    Crew crew(workers);
    crew.loop(n_tasks, [&](std::size_t task, int worker) {
        const std::size_t end = std::min((task + 1) * TASK, draw.n_events);
        std::size_t at = task * TASK;
        float* terms = own[worker].terms.data();
        std::int64_t* drawn = own[worker].counts.data();
        for (; at + LANES <= end; at += LANES) add_lanes(draw, at, LANES, terms, uniforms, total, drawn);
        add_lanes(draw, at, static_cast<int>(end - at), terms, uniforms, total, drawn);
    });
    for (const Worker& worker : own) {
        for (std::size_t p = 0; p < P; p++) counts[p] += worker.counts[p];
    }
}

}  // namespace dpmix
