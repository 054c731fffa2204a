#include "engine.hpp"

#include <algorithm>
#include <numeric>

#include "order.hpp"
#include "pass.hpp"

namespace dpmix {
namespace {

// Pruning needs at least this many components, and pays if it saves this share of the multiplications.
constexpr int PRUNED_COMPONENTS = 16;
constexpr double PAYING_SHARE = 0.3;
// While it does not pay, one task in PROBE is pruned as a test, or one in PROBE_PASSES passes of an engine with
// few tasks, such as a sample's.
constexpr std::size_t PROBE = 64, PROBE_PASSES = 8, PROBE_EVENTS = 4096;

// Of this many pruned passes, the first has clearances, the second has none, and the others have them if they pay.
constexpr std::size_t CLEARANCE_PASSES = 32;
// Clearances from one component pay if they save as many multiplications as this many events have. Measuring them
// takes as long as 190 to 230 events in a dense pass (6 to 32 channels, AVX-512), but a multiplication saved by
// pruning also saves other work: with this number, they were measured in those samples where it saved time.
constexpr double CLEARANCE_EVENTS = 150.0;

constexpr double THREAD_WORK = 4e6;  // multiplications that justify starting a thread

}  // namespace

Engine::Engine(const Sweep& sweep, const float* events, std::size_t n_events, int n_channels,
               const Options& options, std::shared_ptr<Workspaces> workspaces, const SampleWeights& weights)
    : sweep_(sweep),
      events_(events),
      n_events_(n_events),
      n_channels_(n_channels),
      options_(options),
      curve_(n_events, options.scratch),
      workspaces_(std::move(workspaces)) {
    if (options.mapped)
        prefer_large_pages(events, n_events * static_cast<std::size_t>(n_channels) * sizeof(float));
    Crew crew(std::min(options_.threads, static_cast<int>(n_chunks())));
    if (weights.n_samples > 0) spread(weights);
    Passage passage = this->passage(true, {curve_.values()});
    passage.for_each_window(0, n_chunks(), [&](std::size_t first, std::size_t end) {
        crew.loop(end - first, [&](std::size_t c, int) {
            const std::size_t place = (first + c) * CHUNK;
            follow_curve(events_ + place * static_cast<std::size_t>(n_channels_), events_in(first + c),
                         n_channels_, curve_.data() + place);
        });
    });
}

// Gives each event the weight of its sample.
void Engine::spread(const SampleWeights& weights) {
    weights_ = Buffer<float>(n_events_, options_.scratch);
    Passage passage = this->passage(false, {weights_.values()});
    passage.for_each_window(0, n_chunks(), [&](std::size_t first, std::size_t end) {
        const std::size_t from = first * CHUNK, to = std::min(end * CHUNK, n_events_);
        for (std::size_t s = 0; s < weights.n_samples; s++) {
            const std::size_t begin = std::max(static_cast<std::size_t>(weights.starts[s]), from);
            const std::size_t stop = std::min(static_cast<std::size_t>(weights.starts[s + 1]), to);
            if (begin < stop) std::fill(weights_.data() + begin, weights_.data() + stop, weights.values[s]);
        }
    });
}

// The weights of a chunk's events; null if every event has weight 1.
const float* Engine::weights_of(std::size_t chunk) const {
    return weights_ ? weights_.data() + chunk * CHUNK : nullptr;
}

std::vector<Engine::Task> Engine::tasks(const Span& span, std::size_t first_chunk, std::size_t end_chunk,
                                        int size) {
    std::vector<Task> tasks;
    for (std::size_t chunk = first_chunk; chunk < end_chunk; chunk++) {
        const int count = span.events_in(chunk);
        for (int from = 0; from < count; from += size)
            tasks.push_back({chunk, from, std::min(size, count - from), count - from <= size});
    }
    return tasks;
}

Engine::Chain& Engine::chain(std::uint32_t number) {
    Chain& chain = chains_[number];
    if (!chain.order) {
        chain.labels = Buffer<std::uint16_t>(n_events_, options_.scratch);
        Buffer<std::uint16_t> order(n_events_, options_.scratch);
        Passage passage = this->passage(false, {curve_.values(), order.values()});
        passage.for_each_window(0, n_chunks(), [&](std::size_t first, std::size_t end) {
            const std::size_t from = first * CHUNK, to = std::min(end * CHUNK, n_events_);
            std::copy(curve_.data() + from, curve_.data() + to, order.data() + from);
        });
        chain.order = std::move(order);
    }
    return chain;
}

// The passage through the events, if the pass needs them, and the buffers.
Passage Engine::passage(bool events, std::initializer_list<Values> buffers, std::size_t first) const {
    std::vector<Passage::Span> spans;
    const auto take = [&](const void* begin, std::size_t place) {
        spans.push_back({begin, CHUNK * place, n_events_ * place});
    };
    if (events && options_.mapped) take(events_, static_cast<std::size_t>(n_channels_) * sizeof(float));
    for (const Values& values : buffers)
        if (values.in_file) take(values.begin, values.size);
    return {options_.threads, first, std::move(spans)};
}

Piece Engine::piece(Chain& chain, const Task& task, bool pruned, const std::uint16_t* now) const {
    const std::size_t first = task.chunk * CHUNK;
    return Piece{events_ + first * static_cast<std::size_t>(n_channels_),
                 chain.order.data() + first + task.from,
                 task.count,
                 pruned,
                 options_.first_event + first,
                 chain.labels.data() + first,
                 now,
                 weights_of(task.chunk)};
}

bool Engine::can_prune(int n_components) const {
    return options_.pruning && stages_of(n_channels_).count > 1 && n_components >= PRUNED_COMPONENTS;
}

bool Engine::prunes(const Chain& chain, std::size_t task, int n_components) const {
    if (chain.passes == 0 || chain.n_components > n_components || !can_prune(n_components)) return false;
    if (chain.pruning_pays) return true;
    const std::size_t some = std::min((n_events_ + PROBE_EVENTS - 1) / PROBE_EVENTS, PROBE_PASSES);
    return ((chain.passes - 1) * some + task) % std::min(PROBE, PROBE_PASSES * some) == 0;
}

int Engine::threads_for(int n_components, std::size_t n_events) const {
    const double work = static_cast<double>(n_events) * n_components * triangle(0, n_channels_);
    return static_cast<int>(std::clamp(work / THREAD_WORK, 1.0, static_cast<double>(options_.threads)));
}

// The multiplications of a task without pruning.
double Engine::whole_work(const Task& task, int n_components) const {
    return (task.count + sweep_.tile - 1) / sweep_.tile * static_cast<double>(n_components) *
           triangle(0, n_channels_);
}

// True if clearances save more time than they take, by the latest passes with and without them.
bool Engine::clearances_pay(const Chain& chain) const {
    const auto near = std::count_if(chain.sizes.begin(), chain.sizes.end(), [&](std::size_t size) {
        return ClearanceTable::has_row(size, n_channels_);
    });
    const std::size_t events = std::accumulate(chain.sizes.begin(), chain.sizes.end(), std::size_t{0});
    const double saved = (chain.kept_without - chain.kept_with) * static_cast<double>(events);
    return saved > CLEARANCE_EVENTS * static_cast<double>(near);
}

// Notes the work of a pass.
void Engine::note(Pass& pass) {
    const Mixture& mixture = pass.packed.view();
    Chain& chain = pass.chain;
    Work all{0.0, 0.0, false}, pruned{0.0, 0.0, true};
    for (const Work& task : pass.work) {
        for (Work* sum : {&all, &pruned}) {
            if (sum->pruned && !task.pruned) continue;
            sum->made += task.made;
            sum->whole += task.whole;
        }
    }
    kept_ = all.made / all.whole;
    chain.n_components = mixture.n_components;
    chain.passes++;
    if (pruned.whole > 0.0) {
        (mixture.clearances.rows != nullptr ? chain.kept_with : chain.kept_without) =
            pruned.made / pruned.whole;
        const double kept = clearances_pay(chain) ? chain.kept_with : chain.kept_without;
        chain.pruning_pays = kept < 1.0 - PAYING_SHARE;
        chain.pruned_passes++;
    }
}

// Sorts a chunk by label; writes starts [K + 1].
void Engine::sort(Chain& chain, std::size_t chunk, int n_components, std::uint32_t* starts) const {
    const std::size_t first = chunk * CHUNK;
    sort_by_label(chain.labels.data() + first, curve_.data() + first, events_in(chunk), n_components,
                  chain.order.data() + first, starts);
}

// Adds the numbers of events by label of some chunks, given their starts [chunks][K + 1].
void Engine::count(Chain& chain, int n_components, const std::uint32_t* starts, std::size_t n_chunks) {
    for (std::size_t c = 0; c < n_chunks; c++, starts += n_components + 1) {
        for (int j = 0; j < n_components; j++)
            chain.sizes[static_cast<std::size_t>(j)] += starts[j + 1] - starts[j];
    }
}

// Before a pass: measures the clearances of the mixture that the workspace holds, if one of the tasks of the
// pass prunes and they pay or are to be tried, and empties the sizes of the last pass.
void Engine::measure_clearances(Workspace& space, const Parameters& parameters, Chain& chain,
                                const std::uint16_t* now, std::size_t n_tasks, Crew& crew) const {
    const int K = parameters.n_components();
    std::vector<std::size_t> sizes(static_cast<std::size_t>(K), 0);
    bool some = false;
    for (std::size_t task = 0; task < n_tasks && !some; task++) some = prunes(chain, task, K);
    const std::size_t turn = chain.pruned_passes % CLEARANCE_PASSES;
    const bool wanted = turn == 0 || (turn > 1 && chain.pruning_pays && clearances_pay(chain));
    if (some && wanted && chain.sizes.size() <= sizes.size()) {
        for (std::size_t j = 0; j < chain.sizes.size(); j++) sizes[now[j]] += chain.sizes[j];
        space.packed.add(space.clearances.measure(sweep_, parameters, sizes, crew, options_.threads));
    }
    chain.sizes.assign(static_cast<std::size_t>(K), 0);
}

std::vector<Scratch> Engine::scratches(Workspace& space, int n_components, bool soft,
                                       int n_populations) const {
    const std::size_t threads = static_cast<std::size_t>(options_.threads);
    ThreadScratch::grow(space.threads, threads);
    std::vector<Scratch> views;
    for (std::size_t t = 0; t < threads; t++)
        views.push_back(space.threads[t].prepare(n_channels_, n_components, soft, n_populations));
    return views;
}

bool Engine::copy_labels(std::uint32_t chain, std::int32_t* out) const {
    const std::lock_guard<std::mutex> lock(busy_);
    const auto found = chains_.find(chain);
    if (found == chains_.end() || found->second.passes == 0) return false;
    const Buffer<std::uint16_t>& labels = found->second.labels;
    Passage passage = this->passage(false, {labels.values()});
    passage.for_each_window(0, n_chunks(), [&](std::size_t first, std::size_t end) {
        const std::size_t from = first * CHUNK, to = std::min(end * CHUNK, n_events_);
        std::copy(labels.data() + from, labels.data() + to, out + from);
    });
    return true;
}

void Engine::log_densities(const Parameters& parameters, const float* events, int count, float* out) const {
    PackedMixture packed;
    ThreadScratch own;
    Scratch scratch = own.prepare(n_channels_, parameters.n_components(), false);
    sweep_.log_densities(packed.pack(parameters, options_.weight_floor, false).view(), events, count, out,
                         scratch);
}

}  // namespace dpmix
