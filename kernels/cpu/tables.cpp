#include "tables.hpp"

#include <algorithm>

namespace dpmix {
namespace {

constexpr int ROW = 1024;  // events whose tables are counted together

// The tables that the events before, ..., before + n - 1 of a cell open, if the first event were as the others.
int opened(double shape, double before, const double* uniforms, int n) {
    int count = 0;
    for (int i = 0; i < n; i++) count += uniforms[i] * (shape + (before + i)) < shape ? 1 : 0;
    return count;
}

}  // namespace

void open_tables(const Cells& cells, std::int64_t first, const double* shapes, const double* uniforms,
                 std::int64_t n, double* by_component) {
    for (std::size_t cell = 0; cell < cells.count && n > 0; cell++, first = 0) {
        const double shape = shapes[cells.components[cell]];
        const std::int64_t end = std::min(cells.events[cell] - first, n);
        std::int64_t count = first == 0 && !(uniforms[0] * shape < shape) ? 1 : 0;
        for (std::int64_t from = 0; from < end; from += ROW)
            count += opened(shape, static_cast<double>(first + from), uniforms + from,
                            static_cast<int>(std::min<std::int64_t>(ROW, end - from)));
        by_component[cells.components[cell]] += static_cast<double>(count);
        uniforms += end;
        n -= end;
    }
}

}  // namespace dpmix
