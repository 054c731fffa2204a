#include "swaps.hpp"

#include <utility>
#include <vector>

namespace dpmix {
namespace {

void exchange(const StickOrder& state, std::int64_t j, std::int64_t r) {
    std::swap(state.counts[j], state.counts[r]);
    std::swap(state.order[j], state.order[r]);
}

}  // namespace

Moves exchange_any(const StickOrder& state, const double* log_weights, const std::int64_t* firsts,
                   const std::int64_t* others, const double* levels) {
    const double* n = state.counts;
    std::vector<std::int64_t> held;
    for (std::int64_t j = 0; j < state.n_components; j++) {
        if (n[j] > 0.0) held.push_back(j);
    }
    Moves moves{state.n_components, 0};
    for (std::int64_t move = 0; move < state.n_components; move++) {
        std::int64_t& place = held[static_cast<std::size_t>(firsts[move])];
        const std::int64_t j = place, r = others[move] + (others[move] >= j);
        if ((log_weights[j] - log_weights[r]) * (n[r] - n[j]) >= -levels[move]) {
            if (n[r] == 0.0) place = r;
            exchange(state, j, r);
            moves.accepted++;
        }
    }
    return moves;
}

Moves exchange_with_sticks(const StickOrder& state, double* log1m_sticks, const double* levels) {
    const double* n = state.counts;
    Moves moves{0, 0};
    for (int j = 0; j < state.n_components - 2; j++) {
        const bool holds = n[j] + n[j + 1] > 0.0;
        moves.proposed += holds;
        if (n[j] * log1m_sticks[j + 1] - n[j + 1] * log1m_sticks[j] >= -levels[j]) {
            moves.accepted += holds;
            exchange(state, j, j + 1);
            std::swap(log1m_sticks[j], log1m_sticks[j + 1]);
        }
    }
    return moves;
}

Moves exchange_collapsed(const StickOrder& state, double alpha, double after, const double* uniforms) {
    const double* n = state.counts;
    Moves moves{0, 0};
    for (int j = 0; j < state.n_components - 2; j++) {
        const double a = n[j], b = n[j + 1];
        const double ratio = (alpha + b + after) / (alpha + a + after);
        after -= n[j + 2];
        moves.proposed += a + b > 0.0;
        if (uniforms[j] < ratio) {
            moves.accepted += a + b > 0.0;
            exchange(state, j, j + 1);
        }
    }
    return moves;
}

}  // namespace dpmix
