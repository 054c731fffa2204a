#include "vecchia.hpp"

#include <algorithm>
#include <vector>

#include "parallel.hpp"

namespace dpmix {
namespace {

constexpr std::size_t POINTS_PER_TASK = 256;

void add(VecchiaSums& to, const VecchiaSums& from) {
    to.log_det += from.log_det;
    to.yy += from.yy;
    to.xy += from.xy;
    to.xx += from.xx;
    for (int p = 0; p < 3; p++) {
        to.d_log_det[p] += from.d_log_det[p];
        to.d_yy[p] += from.d_yy[p];
        to.d_xy[p] += from.d_xy[p];
        to.d_xx[p] += from.d_xx[p];
        for (int q = 0; q <= p; q++) to.information[p][q] += from.information[p][q];
    }
}

}  // namespace

void nearest_predecessors(const double* times, const std::int64_t* order, std::size_t n, int m,
                          std::int32_t* neighbours) {
    // A list of the points in order of time, from which the points leave from the last of the order to the
    // first: those still linked on both sides of a point are its predecessors.
    std::vector<std::int64_t> before(n), after(n);
    for (std::size_t i = 0; i < n; i++) {
        before[i] = static_cast<std::int64_t>(i) - 1;
        after[i] = i + 1 < n ? static_cast<std::int64_t>(i) + 1 : -1;
    }
    for (std::size_t turn = n; turn-- > 0;) {
        const std::int64_t point = order[turn];
        std::int64_t left = before[point], right = after[point];
        if (left >= 0) after[left] = right;
        if (right >= 0) before[right] = left;
        std::int32_t* own = neighbours + point * m;
        int n_left = 0, n_right = 0;
        std::int64_t first = left;  // of those on the left
        while (n_left + n_right < m && (left >= 0 || right >= 0)) {
            if (left >= 0 && (right < 0 || times[point] - times[left] <= times[right] - times[point])) {
                n_left++;
                first = left;
                left = before[left];
            } else {
                n_right++;
                right = after[right];
            }
        }
        left = first;
        right = after[point];
        for (int k = 0; k < n_left; k++, left = after[left]) own[k] = static_cast<std::int32_t>(left);
        for (int k = n_left; k < n_left + n_right; k++, right = after[right])
            own[k] = static_cast<std::int32_t>(right);
        std::fill(own + n_left + n_right, own + m, -1);
    }
}

VecchiaSums vecchia(const Sweep& sweep, const VecchiaInput& input, int threads) {
    const std::size_t n_tasks = (input.n + POINTS_PER_TASK - 1) / POINTS_PER_TASK;
    std::vector<VecchiaSums> parts(n_tasks);
    Crew crew(threads);
    crew.loop(n_tasks, [&](std::size_t task, int) {
        const std::size_t start = task * POINTS_PER_TASK, stop = std::min(start + POINTS_PER_TASK, input.n);
        sweep.vecchia(input, start, stop, parts[task]);
    });
    VecchiaSums sums;
    for (const VecchiaSums& part : parts) add(sums, part);
    return sums;
}

}  // namespace dpmix
