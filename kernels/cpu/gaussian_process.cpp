#include <algorithm>
#include <vector>

#include "judged.hpp"
#include "parallel.hpp"

namespace dpmix {
namespace {

constexpr std::size_t EVENTS_PER_TASK = 4096;  // a whole number of tiles

struct alignas(64) Line {
    float floats[16];
};

std::size_t whole_blocks(int count) {
    return static_cast<std::size_t>(count + GP_BLOCK - 1) / GP_BLOCK * GP_BLOCK;
}

// Scaled points by block, channel and point.
std::vector<float> packed_points(const Judged& judged) {
    const std::size_t D = static_cast<std::size_t>(judged.n_channels), last = judged.n_points - 1;
    std::vector<float> packed(whole_blocks(judged.n_points) * D);
    for (std::size_t j = 0; j < packed.size() / D; j++) {
        const float* point = judged.points + std::min(j, last) * D;
        float* block = packed.data() + j / GP_BLOCK * GP_BLOCK * D + j % GP_BLOCK;
        for (std::size_t c = 0; c < D; c++) block[c * GP_BLOCK] = point[c] * judged.scales[c];
    }
    return packed;
}

// Rows by block, column and row.
std::vector<float> packed_rows(const Judged& judged) {
    const std::size_t n = judged.n_points, columns = whole_blocks(judged.n_points);
    std::vector<float> packed(whole_blocks(judged.n_rows) * columns);
    for (std::size_t r = 0; r < static_cast<std::size_t>(judged.n_rows); r++) {
        float* block = packed.data() + r / GP_BLOCK * GP_BLOCK * columns + r % GP_BLOCK;
        for (std::size_t j = 0; j < n; j++) block[j * GP_BLOCK] = judged.rows[r * n + j];
    }
    return packed;
}

}  // namespace

void update_posterior(const Sweep& sweep, const Judged& judged, const float* events, std::size_t n_events,
                      int threads, float* mean, float* variance) {
    const std::vector<float> points = packed_points(judged), rows = packed_rows(judged);
    const GaussianProcess process{judged.laplacian, judged.n_channels, judged.n_points, judged.n_rows,
                                  judged.scales,    points.data(),     rows.data(),     judged.targets};
    const std::size_t n_tasks = (n_events + EVENTS_PER_TASK - 1) / EVENTS_PER_TASK;
    threads = static_cast<int>(std::clamp<std::size_t>(n_tasks, 1, static_cast<std::size_t>(threads)));
    const std::size_t lines = whole_blocks(judged.n_rows) * GP_SCRATCH / 16;
    std::vector<std::vector<Line>> scratch(static_cast<std::size_t>(threads), std::vector<Line>(lines));
    Crew crew(threads);
    crew.loop(n_tasks, [&](std::size_t task, int worker) {
        const std::size_t from = task * EVENTS_PER_TASK, count = std::min(EVENTS_PER_TASK, n_events - from);
        sweep.update_posterior(process, events + from * static_cast<std::size_t>(judged.n_channels),
                               static_cast<int>(count), mean + from, variance + from,
                               scratch[static_cast<std::size_t>(worker)].data()->floats);
    });
}

}  // namespace dpmix
