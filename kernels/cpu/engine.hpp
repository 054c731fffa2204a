// The engine: holds the events by reference; one place per event, and one label and one place per event and
// chain. All of these may be in files (buffer.hpp): a pass goes through the chunks in order, and once.
//
// The events are cut into chunks of 65,536: the grid, which belongs to the data. A pass takes the chunks of a
// batch through its steps on all threads; within a chunk what is summed is summed in one order, in float64, and
// the sums of chunks are added in a way that does not depend on order (exact.hpp). So no result depends on
// threads, on the size of a batch, on how the chunks are shared out among engines or on the instruction set
// (x86-64-v2 rounds differently).
#pragma once

#include <map>
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
    int chunks_in_flight;  // 0: one per thread, two where that is all of them; fewer for lack of memory
    std::uint64_t first_event;
    std::filesystem::path scratch;  // folder for what is kept of every event; empty: in memory
    bool mapped;                    // the events are a shared map of a file: their pages may be let go
};

class Engine {
   public:
    Engine(const Sweep& sweep, const float* events, std::size_t n_events, int n_channels,
           const Options& options);

    // Passes add to sums: moments [K][moment_count(D)], then the log likelihood.

    // Gibbs step 1, and the moments of the events by label: a function of events, mixture and key alone. `now` [K]
    // is the number that the component of each last label has now, by which passes are pruned.
    void draw_labels(const Parameters& parameters, const std::uint16_t* now, const Key& key,
                     const Sums& sums);

    // The E step. Its last bits depend on the order in which events are added, and so on the labels that the
    // previous pass of chain 0 left: it is a function of the events, the previous mixture and this one.
    void expect_labels(const Parameters& parameters, const Sums& sums);

    // Memberships [stop - start][P] and log densities [stop - start] of the events from start to stop - 1: a
    // function of each event, the mixture and the populations. Labels and their order stay as they are.
    void memberships(const Parameters& parameters, const Populations& populations, std::size_t start,
                     std::size_t stop, float* memberships, double* log_densities);

    // Deals the events of some components out to pairs of new ones, 2 p and 2 p + 1 for pair p. Adds their moments,
    // and after them the log probability [P] of each pair's sides, to sums. A function of events, labels, mixture,
    // key and word alone; labels and their order stay as they are. False where the chain has no labels of so many
    // components.
    bool divide(const Deal& deal, const Parameters& parameters, const Key& key, const Sums& sums);

    // Copies the labels of one chain to out [N]; false where it has none yet.
    bool copy_labels(std::uint32_t chain, std::int32_t* out) const;

    // Log densities [count][K] of any events.
    void log_densities(const Parameters& parameters, const float* events, int count, float* out) const;

    // Share of the whitening's multiplications that the latest pass made: 1 where nothing was pruned.
    double kept() const { return kept_; }

   private:
    struct Chain {
        Buffer labels;         // [N]
        Buffer order;          // [N]: the places in a chunk, sorted by label, then as in curve_
        int n_components = 0;  // that the labels were drawn from
        std::size_t passes = 0;
        bool pruning_pays = false;  // as measured where a pass pruned
    };
    struct Task {  // part of a chunk's order
        std::size_t chunk;
        int from, count;
    };
    struct Work {  // multiplications made for a task, and made without pruning
        double made, whole;
        bool pruned;
    };

    std::size_t n_chunks() const { return (n_events_ + CHUNK - 1) / CHUNK; }
    int events_in(std::size_t chunk) const;
    void follow_curve(std::size_t chunk);
    std::vector<Task> tasks(std::size_t first_chunk, std::size_t end_chunk, int size) const;
    Chain& chain(std::uint32_t number);
    Passage passage(bool events, std::initializer_list<const Buffer*> buffers, std::size_t first = 0) const;
    Piece piece(Chain& chain, const Task& task, bool pruned, const std::uint16_t* now) const;
    bool can_prune(int n_components) const;
    int threads_for(int n_components, std::size_t n_events) const;
    bool prunes(const Chain& chain, std::size_t task, int n_components) const;
    void note(Chain& chain, int n_components, const std::vector<Work>& work);
    void count(const Chain& chain, std::size_t chunk, int n_components, std::uint32_t* starts) const;
    void sort(Chain& chain, std::size_t chunk, int n_components, std::uint32_t* starts) const;
    std::vector<Scratch> scratches(int n_components, bool soft, int n_populations = 0);

    const Sweep& sweep_;
    const float* events_;
    std::size_t n_events_;
    int n_channels_;
    Options options_;
    Buffer curve_;  // [N]: the places in a chunk, along a curve: neighbours are alike
    std::map<std::uint32_t, Chain> chains_;
    std::vector<ThreadScratch> threads_;
    BatchScratch batch_;
    double kept_ = 1.0;
    mutable std::mutex busy_;  // one pass at a time
};

}  // namespace dpmix
