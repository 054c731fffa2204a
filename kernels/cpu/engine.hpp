// The engine. It holds the events by reference, one place per event, one label and one place per event and
// chain, and a weight per event where events have weights. All of these may be in files (buffer.hpp): a pass
// reads the chunks once, in order.
//
// An event with weight w counts as w events in all sums. Labels do not depend on weights.
//
// The events form a grid of chunks of 65,536, which belongs to the data. A pass does its steps for a batch of
// chunks on all threads. Sums within a chunk have one order, in float64, and the sums of chunks are added in
// a way that does not depend on order (exact.hpp). So no result depends on the threads, the size of a batch,
// the assignment of chunks to engines or the instruction set (x86-64-v2 rounds differently).
//
// engine.cpp holds what the passes share; each pass has its own file, pass_*.cpp. The order of a chunk's
// events is in order.hpp.
//
// Words of a pass, here and in the CUDA kernels:
//   event      a row of the data; its label is the component that the latest draw assigned it to
//   component  a normal of the mixture, 0 to K - 1
//   chunk      65,536 consecutive events; an event has a place in its chunk
//   piece      the events of a task: some places of a chunk, in the chunk's order (Piece, sweep.hpp)
//   tile       the events that are evaluated together, a channel at a time (tile.hpp)
//   pack       to write a mixture as the kernels read it, in float32 (pack.hpp)
//   row        of a whitener: its numbers for one channel; of a packed mixture: all numbers of a component
//   lane       a number of a vector (simd.hpp), a thread of a warp; in dpmix/engines, a stream of a device
//   slot       the place of a chunk in a batch on a device
//   run        events of one component in one chunk whose moments are summed together (runs.hpp)
//
// A label is drawn by draw_labels (pass_draw.cpp), which packs the mixture (pack.hpp) and gives threads pieces
// (parallel.hpp); for each tile, evaluate.hpp finds the candidates and draw.hpp inverts their cumulative sum.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "buffer.hpp"
#include "exact.hpp"
#include "scratch.hpp"
#include "sweep.hpp"

namespace dpmix {

struct Options {
    int threads;
    bool pruning;
    float weight_floor;
    int chunks_in_flight;  // 0: one per thread, or two if that is all of them; fewer if memory is short
    std::uint64_t first_event;
    std::filesystem::path scratch;  // folder for values of every event; empty: memory
    bool mapped;                    // the events are a shared map of a file, so their pages may be released
};

// Weights of the samples, which are ranges of events: those from starts[s] on, before starts[s + 1], have
// weight values[s]. Without samples, every event has weight 1.
struct SampleWeights {
    std::size_t n_samples = 0;
    const std::int64_t* starts = nullptr;
    const float* values = nullptr;
};

// What a pass adds to.
struct Totals {
    Sums sums;       // moments [K][moment_count(D)], then log likelihoods or log probabilities
    int n_channels;  // D
    double* rows;    // [K][D + 1] or null: row D of the moments of an engine with one chunk, written

    // Adds the moments of a component in a chunk.
    void add_moments(const Sweep& sweep, std::size_t component, const double* moments) const {
        const std::size_t n_moments = static_cast<std::size_t>(moment_count(n_channels));
        const std::size_t row = static_cast<std::size_t>(n_channels) + 1;
        sweep.add(sums, component * n_moments, moments, n_moments);
        if (rows != nullptr)
            std::copy(moments + n_moments - row, moments + n_moments, rows + component * row);
    }

    // Adds to number i from the end.
    void add_last(std::size_t i, double number) const { sums.add(sums.n - i, &number, 1); }
};

struct Runs;  // runs.hpp

class Engine {
   public:
    Engine(const Sweep& sweep, const float* events, std::size_t n_events, int n_channels,
           const Options& options, std::shared_ptr<Workspaces> workspaces, const SampleWeights& weights = {});

    // Passes add to totals; the log likelihood is the last number.

    // Gibbs step 1 and the moments of the events by label: a function of events, mixture and key alone. `now`
    // [K] is the present number of the component of each last label; pruning uses it.
    void draw_labels(const Parameters& parameters, const std::uint16_t* now, const Key& key,
                     const Totals& totals);

    // The E step. Its last bits depend on the order in which events are added, and so on the labels of the
    // previous pass of chain 0: it is a function of the events, the previous mixture and this one.
    void expect_labels(const Parameters& parameters, const Totals& totals);

    // Memberships [stop - start][P] and log densities [stop - start] of the events start, ..., stop - 1: a
    // function of each event, the mixture and the populations. The chains' labels and order do not change. Unless
    // `most_probable` is null, writes the most probable components [stop - start] to it.
    void memberships(const Parameters& parameters, const Populations& populations, std::size_t start,
                     std::size_t stop, float* memberships, double* log_densities,
                     std::int32_t* most_probable);

    // Assigns the events of some components to pairs of new components, 2 p and 2 p + 1 for pair p. Adds
    // their moments and the log probability [P] of each pair's sides, the last numbers. A function of events,
    // labels, mixture, key and word alone; labels and their order do not change. False if the chain has no
    // labels of that many components.
    bool divide(const Split& split, const Parameters& parameters, const Key& key, const Totals& totals);

    // Copies the labels of one chain to out [N]; false if it has none yet.
    bool copy_labels(std::uint32_t chain, std::int32_t* out) const;

    // Computes log densities [count][K] of any events.
    void log_densities(const Parameters& parameters, const float* events, int count, float* out) const;

    // The share of the whitening's multiplications that the latest pass made; 1 without pruning.
    double kept() const { return kept_; }

   private:
    struct Chain {
        Buffer<std::uint16_t> labels;    // [N]
        Buffer<std::uint16_t> order;     // [N]: the places in a chunk, sorted by label, then as in curve_
        int n_components = 0;            // of the mixture behind the labels
        std::vector<std::size_t> sizes;  // [K]: events by label
        std::size_t passes = 0;
        std::size_t pruned_passes = 0;
        // The share of multiplications that the latest pruned passes made, with and without clearances.
        double kept_with = 1.0, kept_without = 1.0;
        bool pruning_pays = false;
    };
    struct Span {  // the events start, ..., stop - 1
        std::size_t start = 0, stop = 0;

        std::size_t first_in(std::size_t chunk) const { return std::max(chunk * CHUNK, start); }
        int events_in(std::size_t chunk) const {
            return static_cast<int>(std::min((chunk + 1) * CHUNK, stop) - first_in(chunk));
        }
    };
    // The events whose memberships were asked for last. Labels are the most probable components.
    struct Range {
        Span span;
        Chain chain;               // of these events
        std::vector<float> means;  // [K][D] of the mixture behind the labels
    };
    struct Task {  // part of a chunk's order
        std::size_t chunk;
        int from, count;
        bool last;  // of its chunk
    };
    struct Work {  // multiplications of a task: made, and without pruning
        double made, whole;
        bool pruned;
    };
    struct Pass;  // pass.hpp

    std::size_t n_chunks() const { return (n_events_ + CHUNK - 1) / CHUNK; }
    int events_in(std::size_t chunk) const { return Span{0, n_events_}.events_in(chunk); }
    static std::vector<Task> tasks(const Span& span, std::size_t first_chunk, std::size_t end_chunk,
                                   int size);
    Chain& chain(std::uint32_t number);
    void spread(const SampleWeights& weights);
    const float* weights_of(std::size_t chunk) const;
    Passage passage(bool events, std::initializer_list<Values> buffers, std::size_t first = 0) const;
    Piece piece(Chain& chain, const Task& task, bool pruned, const std::uint16_t* now) const;
    bool can_prune(int n_components) const;
    int threads_for(int n_components, std::size_t n_events) const;
    bool prunes(const Chain& chain, std::size_t task, int n_components) const;
    double whole_work(const Task& task, int n_components) const;
    bool clearances_pay(const Chain& chain) const;
    void note(Pass& pass);
    void sort(Chain& chain, std::size_t chunk, int n_components, std::uint32_t* starts) const;
    static void count(Chain& chain, int n_components, const std::uint32_t* starts, std::size_t n_chunks);

    void measure_clearances(Workspace& space, const Parameters& parameters, Chain& chain,
                            const std::uint16_t* now, std::size_t n_tasks, Crew& crew) const;
    std::vector<Scratch> scratches(Workspace& space, int n_components, bool soft,
                                   int n_populations = 0) const;

    // Steps of draw_labels (pass_draw.cpp).
    void draw_chunks(Pass& pass, const Key& key, std::size_t first, std::size_t end, const Totals& totals);
    void add_moments(Pass& pass, const Runs& runs, const Totals& totals);

    // Steps of expect_labels (pass_expect.cpp).
    void expect_parts(Pass& pass, const std::vector<Task>& parts, std::size_t first, std::size_t end);
    void add_parts(Pass& pass, const std::vector<Task>& parts, std::size_t first, std::size_t end,
                   const Totals& totals);
    static void add_log_likelihoods(const Pass& pass, const std::vector<Task>& parts, const Totals& totals);

    // Steps of memberships (pass_memberships.cpp).
    bool returns_to(const Span& span);
    std::vector<std::uint16_t> numbers_now(const Mixture& mixture, Scratch& scratch) const;
    void sort_range(Pass& pass, const std::uint16_t* unsorted, std::size_t first, std::size_t end);

    // Steps of divide (pass_divide.cpp).
    void divide_runs(Pass& pass, const Split& split, const Key& key, const Runs& runs);
    void add_sides(Pass& pass, const Runs& runs, const Totals& totals);

    const Sweep& sweep_;
    const float* events_;
    std::size_t n_events_;
    int n_channels_;
    Options options_;
    Buffer<std::uint16_t> curve_;  // [N]: the places in a chunk along a curve on which neighbours are similar
    Buffer<float> weights_;        // [N], or empty if every event has weight 1
    std::map<std::uint32_t, Chain> chains_;
    Range range_;
    std::shared_ptr<Workspaces> workspaces_;
    double kept_ = 1.0;
    mutable std::mutex busy_;  // one pass at a time
};

}  // namespace dpmix
