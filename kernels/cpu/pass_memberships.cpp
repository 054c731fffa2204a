// The memberships of events in populations.
#include <numeric>

#include "pass.hpp"

namespace dpmix {
namespace {

constexpr int TASK = 2048;  // events

}  // namespace

// Dense, and in the order of the events. Pruned evaluation along the curve was only 1.0 to 1.3 times as fast
// on mixtures fitted to real samples of 3 to 25 channels.
void Engine::memberships(const Parameters& parameters, const Populations& populations, std::size_t start,
                         std::size_t stop, float* memberships, double* log_densities) {
    const std::lock_guard<std::mutex> lock(busy_);
    const int K = parameters.n_components();
    const std::size_t D = static_cast<std::size_t>(n_channels_),
                      P = static_cast<std::size_t>(populations.count);
    Workspaces::Loan space(*workspaces_);
    const Mixture& mixture = space->packed.pack(parameters, options_.weight_floor, false).view();
    std::vector<Scratch> scratch = scratches(*space, K, false, populations.count);
    std::vector<std::uint16_t> order(TASK);
    std::iota(order.begin(), order.end(), std::uint16_t{0});
    Crew crew(threads_for(K, stop - start));
    const std::size_t first_chunk = start / CHUNK, end_chunk = (stop + CHUNK - 1) / CHUNK;
    Passage passage = this->passage(true, {}, first_chunk);
    passage.for_each_window(first_chunk, end_chunk, [&](std::size_t first, std::size_t end) {
        const std::size_t from = std::max(first * CHUNK, start), to = std::min(end * CHUNK, stop);
        crew.loop((to - from + TASK - 1) / TASK, [&](std::size_t task, int worker) {
            const std::size_t at = from + task * TASK;
            const int count = static_cast<int>(std::min<std::size_t>(TASK, to - at));
            const Piece piece{events_ + at * D, order.data(), count, false, 0, nullptr, nullptr, nullptr};
            sweep_.memberships(mixture, piece, populations, memberships + (at - start) * P,
                               log_densities + (at - start), scratch[worker]);
        });
    });
}

}  // namespace dpmix
