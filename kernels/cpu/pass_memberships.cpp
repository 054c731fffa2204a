// The memberships of events in populations.
//
// They are mostly asked for draw by draw, for the same range of events. From the second time on (from the first,
// where the labels are asked for), a pass labels each event by its most probable component and sorts the range by
// label. The passes after a labelled one prune, unless the first of them shows that this does not pay. Two draws
// need not number their components alike, so labels are translated: a component has become the one that is most
// probable at its mean.
#include <numeric>

#include "order.hpp"
#include "pass.hpp"

namespace dpmix {
namespace {

constexpr int TASK = 2048;                  // events
constexpr std::size_t RANGE_EVENTS = 8192;  // labels of fewer take longer than they save

}  // namespace

void Engine::memberships(const Parameters& parameters, const Populations& populations, std::size_t start,
                         std::size_t stop, float* memberships, double* log_densities,
                         std::int32_t* most_probable) {
    const std::lock_guard<std::mutex> lock(busy_);
    const int K = parameters.n_components();
    Chain& chain = range_.chain;
    const bool may_prune = returns_to({start, stop}) && stop - start >= RANGE_EVENTS && can_prune(K) &&
                           (chain.passes < 2 || chain.pruning_pays);
    const bool labelled = may_prune || most_probable != nullptr;
    const bool pruned = may_prune && chain.passes > 0;
    const std::size_t first_chunk = start / CHUNK, end_chunk = (stop + CHUNK - 1) / CHUNK;
    Workspaces::Loan space(*workspaces_);
    Pass pass{space->packed.pack(parameters, options_.weight_floor, may_prune),
              chain,
              nullptr,
              passage(true, {}, first_chunk),
              scratches(*space, K, false, populations.count),
              space->batch,
              Crew(threads_for(K, stop - start)),
              {}};
    std::vector<std::uint16_t> now, unsorted(std::min<std::size_t>(CHUNK, stop - start));
    std::iota(unsorted.begin(), unsorted.end(), std::uint16_t{0});
    if (labelled) {
        if (!chain.labels) {
            chain.labels = Buffer<std::uint16_t>(stop - start, {});
            chain.order = Buffer<std::uint16_t>(stop - start, {});
        }
        now = numbers_now(pass.packed.view(), pass.scratch[0]);
        pass.now = now.data();
        // Task 0 is pruned if any is.
        measure_clearances(*space, parameters, chain, pass.now, may_prune ? 1 : 0, pass.crew);
    }
    pass.passage.for_each_window(first_chunk, end_chunk, [&](std::size_t first, std::size_t end) {
        const std::vector<Task> parts = tasks(range_.span, first, end, TASK);
        const std::size_t done = pass.work.size();
        pass.work.resize(done + parts.size());
        pass.crew.loop(parts.size(), [&](std::size_t i, int worker) {
            const Task& part = parts[i];
            const std::size_t at = range_.span.first_in(part.chunk) - start;
            const Piece piece{events_ + (start + at) * static_cast<std::size_t>(n_channels_),
                              (pruned ? chain.order.data() + at : unsorted.data()) + part.from,
                              part.count,
                              pruned,
                              0,
                              labelled ? chain.labels.data() + at : nullptr,
                              pass.now,
                              nullptr};
            float* rows = memberships + at * static_cast<std::size_t>(populations.count);
            const double made = sweep_.memberships(pass.packed.view(), piece, populations, rows,
                                                   log_densities + at, pass.scratch[worker]);
            pass.work[done + i] = {made, whole_work(part, K), pruned};
        });
        if (labelled) sort_range(pass, unsorted.data(), first, end);
    });
    if (labelled) {
        range_.means.assign(parameters.means, parameters.means + K * n_channels_);
        note(pass);
        if (most_probable != nullptr)
            std::copy(chain.labels.data(), chain.labels.data() + (stop - start), most_probable);
    } else {
        kept_ = 1.0;
    }
}

// Whether the last memberships asked for were in this range. A new range begins without labels.
bool Engine::returns_to(const Span& span) {
    if (range_.span.start == span.start && range_.span.stop == span.stop) return true;
    range_ = Range{span, {}, {}};
    return false;
}

// The component of this mixture that is most probable at the mean of each component behind the labels.
std::vector<std::uint16_t> Engine::numbers_now(const Mixture& mixture, Scratch& scratch) const {
    const std::size_t K = static_cast<std::size_t>(mixture.n_components);
    const std::size_t before = range_.means.size() / static_cast<std::size_t>(n_channels_);
    std::vector<float> logs(before * K);
    sweep_.log_densities(mixture, range_.means.data(), static_cast<int>(before), logs.data(), scratch);
    std::vector<std::uint16_t> now(before);
    for (std::size_t j = 0; j < before; j++) {
        const float* own = logs.data() + j * K;
        now[j] = static_cast<std::uint16_t>(std::max_element(own, own + K) - own);
    }
    return now;
}

// Sorts the part of the range in the chunks first, ..., end - 1 by label.
void Engine::sort_range(Pass& pass, const std::uint16_t* unsorted, std::size_t first, std::size_t end) {
    const int K = pass.packed.view().n_components;
    Chain& chain = pass.chain;
    ThreadScratch::grow(pass.batch.starts, (end - first) * (K + 1));
    pass.crew.loop(end - first, [&](std::size_t c, int) {
        const std::size_t at = range_.span.first_in(first + c) - range_.span.start;
        sort_by_label(chain.labels.data() + at, unsorted, range_.span.events_in(first + c), K,
                      chain.order.data() + at, &pass.batch.starts[c * (K + 1)]);
    });
    count(chain, K, pass.batch.starts.data(), end - first);
}

}  // namespace dpmix
