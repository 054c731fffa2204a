// Runs: events of one component in one chunk, whose moments are summed together. The sums of a chunk add its
// runs in order, so they do not depend on the size of a batch.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace dpmix {

constexpr int RUN = 2048;  // events of a run, at most

struct Run {
    int component;
    std::size_t chunk;
    std::uint32_t from, count;  // in the chunk's order
};

// The components whose runs are summed into the same moments: members first[g], ..., first[g + 1] - 1 belong
// to group g.
struct Groups {
    std::vector<int> members;
    std::vector<std::size_t> first;  // [groups + 1]

    std::size_t count() const { return first.size() - 1; }
};

struct Runs {
    std::vector<Run> all;            // by group, chunk and component
    std::vector<std::size_t> first;  // [groups + 1] the first run of each group

    // Calls body(from, to) for the runs [from, to) of each chunk among the runs of a group.
    template <class Body>
    void for_each_chunk(std::size_t group, const Body& body) const {
        const std::size_t end = first[group + 1];
        for (std::size_t from = first[group], to = from; from < end; from = to) {
            while (to < end && all[to].chunk == all[from].chunk) to++;
            body(from, to);
        }
    }
};

// Divides the events of the chunks first, ..., end - 1 into runs. starts [end - first][K + 1] are the starts
// of the components in the order of each chunk.
inline Runs find_runs(const Groups& groups, const std::uint32_t* starts, int n_components, std::size_t first,
                      std::size_t end) {
    const std::size_t row = static_cast<std::size_t>(n_components) + 1;
    Runs runs;
    runs.first.reserve(groups.count() + 1);
    runs.all.reserve(groups.members.size() * (end - first));
    for (std::size_t group = 0; group < groups.count(); group++) {
        runs.first.push_back(runs.all.size());
        for (std::size_t c = 0; c < end - first; c++) {
            for (std::size_t member = groups.first[group]; member < groups.first[group + 1]; member++) {
                const int j = groups.members[member];
                const std::uint32_t stop = starts[c * row + j + 1];
                for (std::uint32_t from = starts[c * row + j]; from < stop; from += RUN)
                    runs.all.push_back({j, first + c, from, std::min<std::uint32_t>(RUN, stop - from)});
            }
        }
    }
    runs.first.push_back(runs.all.size());
    return runs;
}

}  // namespace dpmix
