#include "partition.hpp"

#include <algorithm>
#include <limits>
#include <vector>

namespace dpmix {
namespace {

constexpr std::size_t SMALLEST = 16;  // starts of a group; fewer are tried one by one
constexpr double NEVER = std::numeric_limits<double>::infinity();

// Sums over the first values, which give the residual sum of squares of any line in constant time.
struct Sums {
    std::vector<double> y, iy, yy;

    Sums(const double* values, std::size_t n) : y(n + 1), iy(n + 1), yy(n + 1) {
        double mean = 0.0;
        for (std::size_t i = 0; i < n; i++) mean += values[i] / static_cast<double>(n);
        for (std::size_t i = 0; i < n; i++) {
            const double value = values[i] - mean,
                         number = static_cast<double>(i) - 0.5 * static_cast<double>(n);
            y[i + 1] = y[i] + value;
            iy[i + 1] = iy[i] + number * value;
            yy[i + 1] = yy[i] + value * value;
        }
    }

    double rss(std::size_t start, std::size_t stop) const {
        const double n = static_cast<double>(stop - start), half = 0.5 * static_cast<double>(y.size() - 1);
        const double middle = static_cast<double>(start) + 0.5 * (n - 1.0) - half;
        const double sum = y[stop] - y[start], with = iy[stop] - iy[start] - middle * sum;
        const double slope = n > 1.0 ? with * with * 12.0 / (n * (n * n - 1.0)) : 0.0;
        return std::max(yy[stop] - yy[start] - sum * sum / n - slope, 0.0);
    }
};

struct Search {
    const Sums sums;
    const double penalty;
    std::vector<double> best;                 // F
    std::vector<std::vector<double>> bounds;  // [level][group]: of groups of SMALLEST * 2^level starts

    Search(const double* values, std::size_t n, double penalty)
        : sums(values, n), penalty(penalty), best(n + 1, NEVER) {
        best[0] = -penalty;
        for (std::size_t size = SMALLEST; size <= n; size *= 2) bounds.emplace_back(n / size);
    }

    // Bounds the groups that end before `end`, of whose starts F is known.
    void close(std::size_t end) {
        std::size_t size = SMALLEST;
        for (std::size_t level = 0; level < bounds.size() && end % size == 0; level++, size *= 2) {
            double& bound = bounds[level][end / size - 1];
            bound = NEVER;
            for (std::size_t start = end - size; start < end; start++)
                bound = std::min(bound, best[start] + sums.rss(start, end));
        }
    }

    void try_starts(std::size_t from, std::size_t to, std::size_t stop, double& least,
                    std::size_t& chosen) const {
        for (std::size_t start = from; start < to; start++) {
            const double cost = best[start] + sums.rss(start, stop);
            if (cost < least || (cost == least && start < chosen)) least = cost, chosen = start;
        }
    }

    // Tries the starts of a group, later ones first, unless its bound says that none is best.
    void try_group(std::size_t level, std::size_t group, std::size_t stop, double& least,
                   std::size_t& chosen) const {
        const std::size_t size = SMALLEST << level, end = (group + 1) * size;
        if (bounds[level][group] + sums.rss(end, stop) > least) return;
        if (level == 0) return try_starts(group * size, end, stop, least, chosen);
        try_group(level - 1, 2 * group + 1, stop, least, chosen);
        try_group(level - 1, 2 * group, stop, least, chosen);
    }

    // Returns the best last start of the first `stop` values, of the starts before `limit`.
    std::size_t last(std::size_t stop, std::size_t limit, std::size_t likely) {
        double least = NEVER;
        std::size_t chosen = 0;
        try_starts(likely, likely + 1, stop, least, chosen);
        std::size_t at = limit;
        try_starts(at - at % SMALLEST, at, stop, least, chosen);
        at -= at % SMALLEST;
        while (at > 0) {  // the largest group that ends here
            std::size_t level = 0;
            while (level + 1 < bounds.size() && at % (SMALLEST << (level + 1)) == 0) level++;
            try_group(level, at / (SMALLEST << level) - 1, stop, least, chosen);
            at -= SMALLEST << level;
        }
        best[stop] = least + penalty;
        return chosen;
    }
};

}  // namespace

void best_lines(const double* values, std::size_t n, double penalty, std::size_t shortest,
                std::int64_t* last) {
    Search search(values, n, penalty);
    std::fill(last, last + n + 1, 0);
    for (std::size_t stop = 1; stop <= n; stop++) {
        if (stop >= shortest)
            last[stop] = static_cast<std::int64_t>(
                search.last(stop, stop - shortest + 1, static_cast<std::size_t>(last[stop - 1])));
        search.close(stop);
    }
}

}  // namespace dpmix
