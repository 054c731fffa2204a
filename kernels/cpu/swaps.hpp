// The label-swap moves of dpmix/model/label_swaps.py, given their random numbers: the operations of
// tests/model/native_reference.py in the same order, so the same moves are accepted.
#pragma once

#include <cstdint>

namespace dpmix {

// The stick order while moves are made: [K] events of each component, and its place before the moves.
struct StickOrder {
    int n_components;
    double* counts;
    std::int64_t* order;
};

struct Moves {
    std::int64_t proposed, accepted;  // with an event in at least one of the two components
};

// K moves, each with an index into the occupied components, one into all others, and an exponential.
Moves exchange_any(const StickOrder& state, const double* log_weights, const std::int64_t* firsts,
                   const std::int64_t* others, const double* levels);

// The neighbours along the order, with their sticks; levels [K - 2] exponentials. Changes log1m_sticks [K - 1].
Moves exchange_with_sticks(const StickOrder& state, double* log1m_sticks, const double* levels);

// The neighbours along the order except the last pair, given the events after the first two components;
// uniforms [K - 2 or more].
Moves exchange_collapsed(const StickOrder& state, double alpha, double after, const double* uniforms);

}  // namespace dpmix
