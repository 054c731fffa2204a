// The E step: responsibilities, and the moments of the events weighted by them.
#include <numeric>

#include "pass.hpp"

namespace dpmix {
namespace {

constexpr int TASK = 4096;  // events

}  // namespace

void Engine::expect_labels(const Parameters& parameters, const Totals& totals) {
    const std::lock_guard<std::mutex> lock(busy_);
    const int K = parameters.n_components(), threads = threads_for(K, n_events_);
    const std::size_t components = static_cast<std::size_t>(K);
    const std::size_t size = static_cast<std::size_t>(moment_size(n_channels_));
    std::vector<std::uint16_t> as_before(components);  // Bayesian EM does not renumber components
    std::iota(as_before.begin(), as_before.end(), std::uint16_t{0});
    Chain& chain = this->chain(0);
    Workspaces::Loan space(*workspaces_);
    Pass pass{
        space->packed.pack(parameters, options_.weight_floor, can_prune(K)),
        chain,
        as_before.data(),
        passage(true, {chain.labels.values(), chain.order.values(), curve_.values(), weights_.values()}),
        scratches(*space, K, true),
        space->batch,
        Crew(threads),
        {}};

    const std::vector<Task> parts = tasks({0, n_events_}, 0, n_chunks(), TASK);
    const std::size_t task_bytes = components * size * sizeof(double);
    std::size_t batch = options_.chunks_in_flight > 0
                            ? static_cast<std::size_t>(options_.chunks_in_flight) * (CHUNK / TASK)
                            : std::max<std::size_t>(static_cast<std::size_t>(threads), BUDGET / task_bytes);
    batch = std::min(batch, pass.passage.window(n_chunks()) * (CHUNK / TASK));
    batch = std::min(batch, parts.size());
    ThreadScratch::grow(pass.batch.moments, batch * components * size);
    ThreadScratch::grow(pass.batch.touched, batch * components);
    ThreadScratch::grow(pass.batch.chunk, components * size);
    ThreadScratch::grow(pass.batch.log_likelihoods, parts.size());
    pass.batch.started.assign(components, 0);
    pass.work.resize(parts.size());
    measure_clearances(*space, parameters, chain, as_before.data(), parts.size(), pass.crew);

    for (std::size_t first = 0; first < parts.size(); first += batch) {
        const std::size_t end = std::min(first + batch, parts.size());
        const std::size_t first_chunk = parts[first].chunk, last_chunk = parts[end - 1].chunk;
        pass.passage.at(first_chunk, last_chunk + 1);
        expect_parts(pass, parts, first, end);
        add_parts(pass, parts, first, end, totals);
        const std::size_t done = last_chunk - first_chunk + (parts[end - 1].last ? 1 : 0);
        ThreadScratch::grow(pass.batch.starts, done * (components + 1));
        pass.crew.loop(done, [&](std::size_t c, int) {
            sort(chain, first_chunk + c, K, &pass.batch.starts[c * (components + 1)]);
        });
        count(chain, K, pass.batch.starts.data(), done);
    }
    add_log_likelihoods(pass, parts, totals);
    note(pass);
}

// Computes the responsibilities of the tasks first, ..., end - 1, and the moments of each task.
void Engine::expect_parts(Pass& pass, const std::vector<Task>& parts, std::size_t first, std::size_t end) {
    const Mixture& mixture = pass.packed.view();
    const int K = mixture.n_components;
    const std::size_t components = static_cast<std::size_t>(K);
    const std::size_t size = static_cast<std::size_t>(moment_size(n_channels_));
    std::fill_n(pass.batch.touched.begin(), (end - first) * components, std::uint8_t{0});
    pass.crew.loop(end - first, [&](std::size_t p, int worker) {
        const Task& part = parts[first + p];
        const bool pruned = prunes(pass.chain, first + p, K);
        const double made =
            sweep_.expect(mixture, piece(pass.chain, part, pruned, pass.now),
                          &pass.batch.moments[p * components * size], &pass.batch.touched[p * components],
                          &pass.batch.log_likelihoods[first + p], pass.scratch[worker]);
        pass.work[first + p] = {made, whole_work(part, K), pruned};
    });
}

// Adds the moments of the tasks first, ..., end - 1, in order. A chunk may continue in the next batch.
void Engine::add_parts(Pass& pass, const std::vector<Task>& parts, std::size_t first, std::size_t end,
                       const Totals& totals) {
    const std::size_t components = static_cast<std::size_t>(pass.packed.view().n_components);
    const std::size_t size = static_cast<std::size_t>(moment_size(n_channels_));
    pass.crew.loop(components, [&](std::size_t j, int) {
        double* chunk = &pass.batch.chunk[j * size];
        std::uint8_t& started = pass.batch.started[j];
        for (std::size_t p = first; p < end; p++) {
            if (pass.batch.touched[(p - first) * components + j]) {
                const double* own = &pass.batch.moments[((p - first) * components + j) * size];
                if (started) add(own, size, chunk);
                else std::copy(own, own + size, chunk);
                started = 1;
            }
            if (started && parts[p].last) {
                pack(chunk, n_channels_);
                totals.add_moments(sweep_, j, chunk);
                started = 0;
            }
        }
    });
}

// Adds the log likelihoods of all tasks, chunk by chunk.
void Engine::add_log_likelihoods(const Pass& pass, const std::vector<Task>& parts, const Totals& totals) {
    double log_likelihood = 0.0;
    for (std::size_t p = 0; p < parts.size(); p++) {
        log_likelihood += pass.batch.log_likelihoods[p];
        if (!parts[p].last) continue;
        totals.add_last(1, log_likelihood);
        log_likelihood = 0.0;
    }
}

}  // namespace dpmix
