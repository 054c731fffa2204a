// The table counts of the hierarchical model (dpmix/model/cohort.py), given their uniforms.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dpmix {

// Events that sit together: the events of one component in one sample.
struct Cells {
    std::size_t count;
    const std::int64_t* events;
    const std::int64_t* components;
};

// Adds the tables that n events open to by_component [K]: events of the first cell from its event `first` on,
// then events of the next cells. Event i of a cell, from 0, opens one if i is 0 or uniform * (shape + i) <
// shape.
void open_tables(const Cells& cells, std::int64_t first, const double* shapes, const double* uniforms,
                 std::int64_t n, double* by_component);

}  // namespace dpmix
