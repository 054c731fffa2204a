// The label draw: Gibbs step 1 and the moments of the events by label.
#include <atomic>
#include <numeric>

#include "order.hpp"
#include "pass.hpp"
#include "runs.hpp"

namespace dpmix {
namespace {

constexpr int TASK = 2048;  // events

// Chunks in flight per thread: a chunk's events are then still in the cache when their moments are summed
// (all chunks at once took a third longer with 8 channels). If there are only a few more, all are in flight.
constexpr std::size_t CHUNKS_PER_THREAD = 1;

// The chunks of a batch, before files are considered.
std::size_t wanted_chunks(const Options& options, std::size_t n_chunks, int n_components, std::size_t size) {
    if (options.chunks_in_flight > 0) return static_cast<std::size_t>(options.chunks_in_flight);
    const std::size_t bytes = CHUNK * sizeof(double) + (n_components + CHUNK / RUN) * size * sizeof(double);
    const std::size_t wanted = CHUNKS_PER_THREAD * static_cast<std::size_t>(options.threads);
    return std::clamp<std::size_t>(BUDGET / bytes, 1, n_chunks <= 2 * wanted ? 2 * wanted : wanted);
}

// The sum of values times their weights (null: all 1), from four partial sums: an addition need not wait for
// the previous one.
double sum(const double* values, const float* weights, int n) {
    double sums[4] = {};
    for (int i = 0; i < n; i++) sums[i % 4] += weights == nullptr ? values[i] : weights[i] * values[i];
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

}  // namespace

void Engine::draw_labels(const Parameters& parameters, const std::uint16_t* now, const Key& key,
                         const Totals& totals) {
    const std::lock_guard<std::mutex> lock(busy_);
    const int K = parameters.n_components();
    Chain& chain = this->chain(key.chain);
    Workspaces::Loan space(*workspaces_);
    Pass pass{
        space->packed.pack(parameters, options_.weight_floor, can_prune(K)),
        chain,
        now,
        passage(true, {chain.labels.values(), chain.order.values(), curve_.values(), weights_.values()}),
        scratches(*space, K, false),
        space->batch,
        Crew(threads_for(K, n_events_)),
        {}};
    const std::size_t size = static_cast<std::size_t>(moment_size(n_channels_));
    const std::size_t wanted = wanted_chunks(options_, n_chunks(), K, size);
    const std::size_t batch = pass.passage.window(std::min(wanted, n_chunks()));
    ThreadScratch::grow(pass.batch.log_likelihoods, batch * CHUNK);
    ThreadScratch::grow(pass.batch.starts, batch * (K + 1));
    Groups components{std::vector<int>(K), std::vector<std::size_t>(K + 1)};  // one in each group
    std::iota(components.members.begin(), components.members.end(), 0);
    std::iota(components.first.begin(), components.first.end(), std::size_t{0});

    measure_clearances(*space, parameters, chain, now, (n_events_ + TASK - 1) / TASK, pass.crew);

    for (std::size_t first = 0; first < n_chunks(); first += batch) {
        const std::size_t end = std::min(first + batch, n_chunks());
        pass.passage.at(first, end);
        draw_chunks(pass, key, first, end, totals);
        count(chain, K, pass.batch.starts.data(), end - first);
        add_moments(pass, find_runs(components, pass.batch.starts.data(), K, first, end), totals);
    }
    note(pass);
}

// Draws the labels of the chunks first, ..., end - 1. The thread that draws the last labels of a chunk also
// sorts the chunk by label and adds its log likelihoods in the order of the events.
void Engine::draw_chunks(Pass& pass, const Key& key, std::size_t first, std::size_t end,
                         const Totals& totals) {
    const Mixture& mixture = pass.packed.view();
    const int K = mixture.n_components;
    const std::vector<Task> parts = tasks({0, n_events_}, first, end, TASK);
    const std::size_t done = pass.work.size();
    pass.work.resize(done + parts.size());
    std::vector<double> chunk_log_likelihoods(end - first);
    std::vector<std::atomic<int>> undrawn(end - first);
    for (const Task& part : parts) undrawn[part.chunk - first]++;
    pass.crew.loop(parts.size(), [&](std::size_t i, int worker) {
        const Task& part = parts[i];
        const std::size_t c = part.chunk - first;
        double* log_likelihoods = &pass.batch.log_likelihoods[c * CHUNK];
        const bool pruned = prunes(pass.chain, done + i, K);
        const double made = sweep_.draw(mixture, piece(pass.chain, part, pruned, pass.now), key,
                                        log_likelihoods, pass.scratch[worker]);
        pass.work[done + i] = {made, whole_work(part, K), pruned};
        if (--undrawn[c] == 0) {
            sort(pass.chain, part.chunk, K, &pass.batch.starts[c * (K + 1)]);
            chunk_log_likelihoods[c] = sum(log_likelihoods, weights_of(part.chunk), events_in(part.chunk));
        }
    });
    for (const double& log_likelihood : chunk_log_likelihoods) totals.add_last(1, log_likelihood);
}

// Computes the moments of the runs and adds them. The sums of a chunk replace its first run.
void Engine::add_moments(Pass& pass, const Runs& runs, const Totals& totals) {
    const Mixture& mixture = pass.packed.view();
    const std::size_t size = static_cast<std::size_t>(moment_size(n_channels_));
    ThreadScratch::grow(pass.batch.moments, runs.all.size() * size);
    pass.crew.loop(runs.all.size(), [&](std::size_t i, int worker) {
        const Run& run = runs.all[i];
        const std::size_t place = run.chunk * CHUNK;
        sweep_.moments(mixture, run.component, events_ + place * static_cast<std::size_t>(n_channels_),
                       weights_of(run.chunk), pass.chain.order.data() + place + run.from,
                       static_cast<int>(run.count), &pass.batch.moments[i * size], pass.scratch[worker]);
    });
    pass.crew.loop(static_cast<std::size_t>(mixture.n_components), [&](std::size_t j, int) {
        runs.for_each_chunk(j, [&](std::size_t from, std::size_t to) {
            double* own = &pass.batch.moments[from * size];
            for (std::size_t run = from + 1; run < to; run++) add(&pass.batch.moments[run * size], size, own);
            pack(own, n_channels_);
            totals.add_moments(sweep_, j, own);
        });
    });
}

}  // namespace dpmix
