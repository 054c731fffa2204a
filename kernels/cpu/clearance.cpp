#include "clearance.hpp"

namespace dpmix {

Clearances ClearanceTable::measure(const Sweep& sweep, const Parameters& parameters,
                                   const std::vector<std::size_t>& sizes, Crew& crew, int threads) {
    const int K = parameters.n_components(), D = parameters.whiteners.n_channels();
    const std::size_t stride = static_cast<std::size_t>((K + MAX_TILE - 1) / MAX_TILE) * MAX_TILE;
    const std::size_t n_groups = static_cast<std::size_t>((K + GROUP - 1) / GROUP);
    const std::size_t scratch = static_cast<std::size_t>(clearance_scratch_size(D));
    near_.clear();
    rows_.assign(static_cast<std::size_t>(K), -1);
    for (int j = 0; j < K; j++) {
        if (!has_row(sizes[static_cast<std::size_t>(j)], D)) continue;
        rows_[static_cast<std::size_t>(j)] = static_cast<int>(near_.size());
        near_.push_back(j);
    }
    if (near_.empty()) return {};
    groups_.resize(n_groups * static_cast<std::size_t>(clearance_group_size(D)));
    scratch_.resize(static_cast<std::size_t>(threads) * scratch);
    distances_.resize(near_.size() * stride);
    widenings_.resize(near_.size() * stride);
    const ClearanceInput input{K, D, parameters.means, parameters.whiteners.values(), groups_.data()};
    const auto own = [&](int worker) { return scratch_.data() + static_cast<std::size_t>(worker) * scratch; };
    crew.loop(n_groups, [&](std::size_t group, int worker) {
        sweep.prepare_clearances(input, static_cast<int>(group), own(worker));
    });
    crew.loop(near_.size(), [&](std::size_t row, int worker) {
        sweep.clearances(input, near_[row], own(worker), &distances_[row * stride],
                         &widenings_[row * stride]);
    });
    return {static_cast<int>(stride), rows_.data(), distances_.data(), widenings_.data()};
}

}  // namespace dpmix
