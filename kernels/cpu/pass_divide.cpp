// The division of the events of some components between pairs of new components, for split-merge moves.
#include <numeric>

#include "order.hpp"
#include "pass.hpp"
#include "runs.hpp"

namespace dpmix {
namespace {

// The components of each pair.
Groups groups_of(const Split& split, int n_pairs) {
    std::vector<std::size_t> next(static_cast<std::size_t>(n_pairs) + 1);
    for (int j = 0; j < split.n_components; j++)
        if (split.pairs[j] >= 0) next[static_cast<std::size_t>(split.pairs[j]) + 1]++;
    std::partial_sum(next.begin(), next.end(), next.begin());
    Groups groups{std::vector<int>(next.back()), next};
    for (int j = 0; j < split.n_components; j++)
        if (split.pairs[j] >= 0) groups.members[next[static_cast<std::size_t>(split.pairs[j])]++] = j;
    return groups;
}

// The chunks of a batch, before files are considered.
std::size_t wanted_chunks(const Options& options, const Groups& groups, std::size_t size) {
    if (options.chunks_in_flight > 0) return static_cast<std::size_t>(options.chunks_in_flight);
    const std::size_t bytes = (groups.members.size() + CHUNK / RUN) * 2 * size * sizeof(double);
    return std::max<std::size_t>(BUDGET / bytes, 1);
}

}  // namespace

bool Engine::divide(const Split& split, const Parameters& parameters, const Key& key, const Totals& totals) {
    const std::lock_guard<std::mutex> lock(busy_);
    const auto found = chains_.find(key.chain);
    if (found == chains_.end() || found->second.passes == 0) return false;
    Chain& chain = found->second;
    if (chain.n_components != split.n_components) return false;
    const int K = split.n_components;
    Workspaces::Loan space(*workspaces_);
    Pass pass{space->packed.pack(parameters, options_.weight_floor, false),
              chain,
              nullptr,
              passage(true, {chain.labels.values(), chain.order.values(), weights_.values()}),
              scratches(*space, 2, false),
              space->batch,
              Crew(threads_for(4, n_events_)),
              {}};
    const std::size_t size = static_cast<std::size_t>(moment_size(n_channels_));
    const Groups groups = groups_of(split, parameters.n_components() / 2);
    const std::size_t batch =
        pass.passage.window(std::min(wanted_chunks(options_, groups, size), n_chunks()));
    ThreadScratch::grow(pass.batch.starts, batch * (K + 1));
    for (std::size_t first = 0; first < n_chunks(); first += batch) {
        const std::size_t end = std::min(first + batch, n_chunks());
        pass.passage.at(first, end);
        pass.crew.loop(end - first, [&](std::size_t c, int) {
            count_labels(chain.labels.data() + (first + c) * CHUNK, events_in(first + c), K,
                         &pass.batch.starts[c * (K + 1)]);
        });
        const Runs runs = find_runs(groups, pass.batch.starts.data(), K, first, end);
        divide_runs(pass, split, key, runs);
        add_sides(pass, runs, totals);
    }
    return true;
}

// Assigns the events of each run to the sides of its pair. Computes the moments of both sides and the log
// probability of the run's sides.
void Engine::divide_runs(Pass& pass, const Split& split, const Key& key, const Runs& runs) {
    const std::size_t size = static_cast<std::size_t>(moment_size(n_channels_));
    ThreadScratch::grow(pass.batch.moments, runs.all.size() * 2 * size);
    ThreadScratch::grow(pass.batch.log_likelihoods, runs.all.size());
    pass.crew.loop(runs.all.size(), [&](std::size_t i, int worker) {
        const Run& run = runs.all[i];
        const int pair = split.pairs[run.component];
        const std::size_t place = run.chunk * CHUNK;
        const float* events = events_ + place * static_cast<std::size_t>(n_channels_);
        const std::uint16_t* order = pass.chain.order.data() + place + run.from;
        const int n = static_cast<int>(run.count);
        const float* weights = weights_of(run.chunk);
        const Piece piece{events, order, n, false, options_.first_event + place, nullptr, nullptr, weights};
        std::uint8_t sides[RUN];
        std::uint16_t places[2][RUN];
        int counts[2] = {};
        pass.batch.log_likelihoods[i] =
            sweep_.divide(pass.packed.two(2 * pair), piece, key, split.word, split.sides[run.component],
                          sides, pass.scratch[worker]);
        for (int e = 0; e < n; e++) places[sides[e]][counts[sides[e]]++] = order[e];
        for (int side = 0; side < 2; side++)
            sweep_.moments(pass.packed.view(), 2 * pair + side, events, weights, places[side], counts[side],
                           &pass.batch.moments[(2 * i + side) * size], pass.scratch[worker]);
    });
}

// Adds the moments and log probabilities of the runs, pair by pair. The sums of a chunk replace its first
// run.
void Engine::add_sides(Pass& pass, const Runs& runs, const Totals& totals) {
    const std::size_t size = static_cast<std::size_t>(moment_size(n_channels_));
    const std::size_t n_pairs = runs.first.size() - 1;
    pass.crew.loop(n_pairs, [&](std::size_t pair, int) {
        runs.for_each_chunk(pair, [&](std::size_t from, std::size_t to) {
            double* own = &pass.batch.moments[2 * from * size];
            for (std::size_t run = from + 1; run < to; run++)
                add(&pass.batch.moments[2 * run * size], 2 * size, own);
            const double* of_runs = pass.batch.log_likelihoods.data();
            const double log_probability = std::accumulate(of_runs + from, of_runs + to, 0.0);
            for (std::size_t side = 0; side < 2; side++) {
                pack(own + side * size, n_channels_);
                totals.add_moments(sweep_, 2 * pair + side, own + side * size);
            }
            totals.add_last(n_pairs - pair, log_probability);
        });
    });
}

}  // namespace dpmix
