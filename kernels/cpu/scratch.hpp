// Working memory of passes, kept from pass to pass and grown when a pass needs more.
#pragma once

#include <mutex>
#include <utility>

#include "clearance.hpp"

namespace dpmix {

// Working memory of one thread; it owns the arrays of sweep.hpp's Scratch.
class ThreadScratch {
    AlignedVector<float> logs_, rows_, sums_;
    std::vector<double> weights_;
    std::vector<std::uint16_t> entries_;
    std::vector<float> shares_;
    std::vector<int> candidates_, starts_, nexts_, heads_, tails_;

   public:
    // `soft`: also for the E step. `n_populations`: also for memberships.
    Scratch prepare(int n_channels, int n_components, bool soft, int n_populations = 0) {
        const std::size_t K = static_cast<std::size_t>(n_components);
        grow(logs_, K * MAX_TILE);
        grow(rows_, std::size_t{2} * 64 * padded_width(n_channels));
        grow(sums_, static_cast<std::size_t>(n_populations) * MAX_TILE);
        grow(weights_, K);
        grow(candidates_, K);
        Scratch scratch{};
        if (soft) {
            scratch.capacity = MAX_TILE * n_components + ENTRIES;
            const std::size_t capacity = static_cast<std::size_t>(scratch.capacity);
            grow(entries_, capacity);
            grow(shares_, capacity);
            grow(starts_, capacity + 1);
            grow(nexts_, capacity);
            grow(heads_, K);
            grow(tails_, K);
        }
        scratch.logs = logs_.data();
        scratch.candidates = candidates_.data();
        scratch.weights = weights_.data();
        scratch.rows = rows_.data();
        scratch.sums = sums_.data();
        scratch.entries = entries_.data();
        scratch.shares = shares_.data();
        scratch.starts = starts_.data();
        scratch.nexts = nexts_.data();
        scratch.heads = heads_.data();
        scratch.tails = tails_.data();
        return scratch;
    }

    template <class Vector>
    static void grow(Vector& vector, std::size_t size) {
        if (vector.size() < size) vector.resize(size);
    }

   private:
    static constexpr int ENTRIES = 16384;  // of a block, without the room for one more tile
};

// Working memory of a batch of chunks.
struct BatchScratch {
    std::vector<double> log_likelihoods;  // by event (draw), task (expect) or run (divide)
    std::vector<std::uint32_t> starts;    // [chunks][K + 1] of the components in a chunk's order
    AlignedVector<double> moments;        // of runs, or of pieces and components
    std::vector<std::uint8_t> touched;    // [pieces][K]
    AlignedVector<double> chunk;          // [K][moment_size(D)] of a chunk's pieces so far (expect only)
    std::vector<std::uint8_t> started;    // [K]: 1 if `chunk` includes the component
};

// Working memory of one pass.
struct Workspace {
    PackedMixture packed;
    ClearanceTable clearances;
    std::vector<ThreadScratch> threads;
    BatchScratch batch;
};

// The workspaces of engines that share them: as many as passes run at a time. Small engines whose passes take
// turns then find their working memory in the cache.
class Workspaces {
    std::mutex busy_;
    std::vector<Workspace> free_;

   public:
    // A workspace for as long as this lives.
    class Loan {
        Workspaces& from_;
        Workspace space_;

       public:
        explicit Loan(Workspaces& from) : from_(from) {
            const std::lock_guard<std::mutex> lock(from_.busy_);
            if (from_.free_.empty()) return;
            space_ = std::move(from_.free_.back());
            from_.free_.pop_back();
        }
        ~Loan() {
            const std::lock_guard<std::mutex> lock(from_.busy_);
            from_.free_.push_back(std::move(space_));
        }
        Loan(const Loan&) = delete;
        Loan& operator=(const Loan&) = delete;

        Workspace& operator*() { return space_; }
        Workspace* operator->() { return &space_; }
    };
};

}  // namespace dpmix
