// The E step: responsibilities, and the moments of the events weighted by them.
#include <numeric>

#include "pass.hpp"

namespace dpmix {
namespace {

constexpr int TASK = 4096;  // events

}  // namespace

void Engine::expect_labels(const Parameters& parameters, const Sums& sums) {
    const std::lock_guard<std::mutex> lock(busy_);
    const int K = parameters.n_components, threads = threads_for(K, n_events_);
    const std::size_t components = static_cast<std::size_t>(K);
    const std::size_t size = static_cast<std::size_t>(moment_size(n_channels_));
    std::vector<std::uint16_t> as_before(components);  // Bayesian EM does not renumber components
    std::iota(as_before.begin(), as_before.end(), std::uint16_t{0});
    Chain& chain = this->chain(0);
    Pass pass{
        PackedMixture(parameters, n_channels_, options_.weight_floor, can_prune(K)),
        chain,
        as_before.data(),
        passage(true, {chain.labels.values(), chain.order.values(), curve_.values(), weights_.values()}),
        scratches(K, true),
        Crew(threads),
        {}};

    const std::vector<Task> parts = tasks(0, n_chunks(), TASK);
    const std::size_t task_bytes = components * size * sizeof(double);
    std::size_t batch = options_.chunks_in_flight > 0
                            ? static_cast<std::size_t>(options_.chunks_in_flight) * (CHUNK / TASK)
                            : std::max<std::size_t>(static_cast<std::size_t>(threads), BUDGET / task_bytes);
    batch = std::min(batch, pass.passage.window(n_chunks()) * (CHUNK / TASK));
    batch = std::min(batch, parts.size());
    ThreadScratch::grow(batch_.moments, batch * components * size);
    ThreadScratch::grow(batch_.touched, batch * components);
    ThreadScratch::grow(batch_.chunk, components * size);
    ThreadScratch::grow(batch_.log_likelihoods, parts.size());
    batch_.started.assign(components, 0);
    pass.work.resize(parts.size());

    for (std::size_t first = 0; first < parts.size(); first += batch) {
        const std::size_t end = std::min(first + batch, parts.size());
        const std::size_t first_chunk = parts[first].chunk, last_chunk = parts[end - 1].chunk;
        pass.passage.at(first_chunk, last_chunk + 1);
        expect_parts(pass, parts, first, end);
        add_parts(pass, parts, first, end, sums);
        pass.crew.loop(last_chunk - first_chunk + (parts[end - 1].last ? 1 : 0),
                       [&](std::size_t c, int) { sort(chain, first_chunk + c, K, nullptr); });
    }
    add_log_likelihoods(parts, sums);
    note(chain, K, pass.work);
}

// Computes the responsibilities of the tasks first, ..., end - 1, and the moments of each task.
void Engine::expect_parts(Pass& pass, const std::vector<Task>& parts, std::size_t first, std::size_t end) {
    const Mixture& mixture = pass.packed.view();
    const int K = mixture.n_components;
    const std::size_t components = static_cast<std::size_t>(K);
    const std::size_t size = static_cast<std::size_t>(moment_size(n_channels_));
    std::fill_n(batch_.touched.begin(), (end - first) * components, std::uint8_t{0});
    pass.crew.loop(end - first, [&](std::size_t p, int worker) {
        const Task& part = parts[first + p];
        const bool pruned = prunes(pass.chain, first + p, K);
        const double made = sweep_.expect(
            mixture, piece(pass.chain, part, pruned, pass.now), &batch_.moments[p * components * size],
            &batch_.touched[p * components], &batch_.log_likelihoods[first + p], pass.scratch[worker]);
        pass.work[first + p] = {made, whole_work(part, K), pruned};
    });
}

// Adds the moments of the tasks first, ..., end - 1, in order. A chunk may continue in the next batch.
void Engine::add_parts(Pass& pass, const std::vector<Task>& parts, std::size_t first, std::size_t end,
                       const Sums& sums) {
    const std::size_t components = static_cast<std::size_t>(pass.packed.view().n_components);
    const std::size_t size = static_cast<std::size_t>(moment_size(n_channels_));
    const std::size_t n_moments = static_cast<std::size_t>(moment_count(n_channels_));
    pass.crew.loop(components, [&](std::size_t j, int) {
        double* chunk = &batch_.chunk[j * size];
        std::uint8_t& started = batch_.started[j];
        for (std::size_t p = first; p < end; p++) {
            if (batch_.touched[(p - first) * components + j]) {
                const double* own = &batch_.moments[((p - first) * components + j) * size];
                if (started) add(own, size, chunk);
                else std::copy(own, own + size, chunk);
                started = 1;
            }
            if (started && parts[p].last) {
                pack(chunk, n_channels_);
                sums.add(j * n_moments, chunk, n_moments);
                started = 0;
            }
        }
    });
}

// Adds the log likelihoods of all tasks, chunk by chunk.
void Engine::add_log_likelihoods(const std::vector<Task>& parts, const Sums& sums) const {
    double log_likelihood = 0.0;
    for (std::size_t p = 0; p < parts.size(); p++) {
        log_likelihood += batch_.log_likelihoods[p];
        if (!parts[p].last) continue;
        sums.add(sums.n - 1, &log_likelihood, 1);
        log_likelihood = 0.0;
    }
}

}  // namespace dpmix
