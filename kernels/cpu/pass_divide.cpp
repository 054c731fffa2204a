// The division of the events of some components between pairs of new components, for split-merge moves.
#include <numeric>

#include "order.hpp"
#include "pass.hpp"
#include "runs.hpp"

namespace dpmix {
namespace {

// The components of each pair.
Groups members_of(const Split& split, int n_pairs) {
    Groups members(static_cast<std::size_t>(n_pairs));
    for (int j = 0; j < split.n_components; j++)
        if (split.pairs[j] >= 0) members[static_cast<std::size_t>(split.pairs[j])].push_back(j);
    return members;
}

// The chunks of a batch, before files are considered.
std::size_t wanted_chunks(const Options& options, const Groups& members, std::size_t size) {
    if (options.chunks_in_flight > 0) return static_cast<std::size_t>(options.chunks_in_flight);
    std::size_t moved = 0;
    for (const std::vector<int>& components : members) moved += components.size();
    const std::size_t bytes = (moved + CHUNK / RUN) * 2 * size * sizeof(double);
    return std::max<std::size_t>(BUDGET / bytes, 1);
}

}  // namespace

bool Engine::divide(const Split& split, const Parameters& parameters, const Key& key, const Sums& sums) {
    const std::lock_guard<std::mutex> lock(busy_);
    const auto found = chains_.find(key.chain);
    if (found == chains_.end() || found->second.passes == 0) return false;
    Chain& chain = found->second;
    if (chain.n_components != split.n_components) return false;
    const int K = split.n_components;
    Pass pass{PackedMixture(parameters, n_channels_, options_.weight_floor, false),
              chain,
              nullptr,
              passage(true, {chain.labels.values(), chain.order.values(), weights_.values()}),
              scratches(2, false),
              Crew(threads_for(4, n_events_)),
              {}};
    const std::size_t size = static_cast<std::size_t>(moment_size(n_channels_));
    const Groups members = members_of(split, parameters.n_components / 2);
    const std::size_t batch =
        pass.passage.window(std::min(wanted_chunks(options_, members, size), n_chunks()));
    ThreadScratch::grow(batch_.starts, batch * (K + 1));
    for (std::size_t first = 0; first < n_chunks(); first += batch) {
        const std::size_t end = std::min(first + batch, n_chunks());
        pass.passage.at(first, end);
        pass.crew.loop(end - first, [&](std::size_t c, int) {
            count_labels(chain.labels.data() + (first + c) * CHUNK, events_in(first + c), K,
                         &batch_.starts[c * (K + 1)]);
        });
        const Runs runs = find_runs(members, batch_.starts.data(), K, first, end);
        divide_runs(pass, split, key, runs);
        add_sides(pass, runs, sums);
    }
    return true;
}

// Assigns the events of each run to the sides of its pair. Computes the moments of both sides and the log
// probability of the run's sides.
void Engine::divide_runs(Pass& pass, const Split& split, const Key& key, const Runs& runs) {
    const std::size_t size = static_cast<std::size_t>(moment_size(n_channels_));
    ThreadScratch::grow(batch_.moments, runs.all.size() * 2 * size);
    ThreadScratch::grow(batch_.log_likelihoods, runs.all.size());
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
        batch_.log_likelihoods[i] = sweep_.divide(pass.packed.two(2 * pair), piece, key, split.word,
                                                  split.sides[run.component], sides, pass.scratch[worker]);
        for (int e = 0; e < n; e++) places[sides[e]][counts[sides[e]]++] = order[e];
        for (int side = 0; side < 2; side++)
            sweep_.moments(pass.packed.view(), 2 * pair + side, events, weights, places[side], counts[side],
                           &batch_.moments[(2 * i + side) * size], pass.scratch[worker]);
    });
}

// Adds the moments and log probabilities of the runs, pair by pair. The sums of a chunk replace its first
// run.
void Engine::add_sides(Pass& pass, const Runs& runs, const Sums& sums) {
    const std::size_t size = static_cast<std::size_t>(moment_size(n_channels_));
    const std::size_t n_moments = static_cast<std::size_t>(moment_count(n_channels_));
    const std::size_t n_pairs = runs.first.size() - 1;
    pass.crew.loop(n_pairs, [&](std::size_t pair, int) {
        runs.for_each_chunk(pair, [&](std::size_t from, std::size_t to) {
            double* own = &batch_.moments[2 * from * size];
            for (std::size_t run = from + 1; run < to; run++)
                add(&batch_.moments[2 * run * size], 2 * size, own);
            const double* of_runs = batch_.log_likelihoods.data();
            const double log_probability = std::accumulate(of_runs + from, of_runs + to, 0.0);
            for (std::size_t side = 0; side < 2; side++) {
                pack(own + side * size, n_channels_);
                sums.add((2 * pair + side) * n_moments, own + side * size, n_moments);
            }
            sums.add(sums.n - n_pairs + pair, &log_probability, 1);
        });
    });
}

}  // namespace dpmix
