// The partition of a series into straight lines with the least sum of costs, for dpmix.drift.steps.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dpmix {

// Writes to `last` [n + 1] where the last line of the best partition of the first values begins, for each number of
// values. The cost of a line is its residual sum of squares plus the penalty. A line has at least `shortest` values, 2
// or more (where n has this many), and is one over the numbers of the values.
//
// It is the minimum over all partitions, by the recursion of optimal partitioning (Jackson et al. 2005, IEEE Signal
// Process. Lett. 12:105):
//
//   F(stop) = min over start of F(start) + RSS(start, stop) + penalty
//
// RSS(start, stop) is at least RSS(start, end) + RSS(end, stop) for any end between them. PELT (Killick, Fearnhead and
// Eckley 2012, J. Am. Stat. Assoc. 107:1590) prunes single starts by this, and none of a series without changes. Here
// it bounds all starts of a group before `end` at once, by the smallest F(start) + RSS(start, end) of the group. Groups
// have 16, 32, 64, ... starts. One whose bound is above the best start so far is skipped with all of its starts.
// So the time of straight lines is about n log n, whether there are changes or not. A curve has very many partitions
// that are nearly the best, and takes more; the upper limit is n^2.
void best_lines(const double* values, std::size_t n, double penalty, std::size_t shortest,
                std::int64_t* last);

}  // namespace dpmix
