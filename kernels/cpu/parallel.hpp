// Threads for one pass: started once, they take part in each of its loops. Nothing outlives the pass, so
// there is nothing to shut down and fork() is safe. Between loops they spin: a pass has many short loops, and
// a thread that sleeps (or is started anew) takes longer to come back than some of them last.
//
// Each thread takes its own share of a loop's tasks first, the same share in every loop and pass, and then
// what others have left: what it wrote last is still in its cache. Where two cores share none, tasks dealt
// out in turn made two threads a fifth slower at D = 8.
#pragma once

#include <atomic>
#include <cstddef>
#include <system_error>
#include <thread>
#include <vector>

namespace dpmix {

class Crew {
   public:
    explicit Crew(int threads) : shares_(static_cast<std::size_t>(threads)) {
        for (int worker = 1; worker < threads; worker++) {
            try {
                others_.emplace_back([this, worker] { serve(worker); });
            } catch (const std::system_error&) {
                break;  // no more threads are to be had: the ones there are do all tasks
            }
        }
    }

    ~Crew() {
        body_ = nullptr;
        loops_.fetch_add(1, std::memory_order_release);
        for (std::thread& other : others_) other.join();
    }

    Crew(const Crew&) = delete;
    Crew& operator=(const Crew&) = delete;

    // Runs body(task, worker) for every task in [0, n_tasks), worker in [0, threads); no order is promised.
    // The body must not throw.
    template <class Body>
    void loop(std::size_t n_tasks, const Body& body) {
        body_ = &body;
        call_ = [](const void* any, std::size_t task, int worker) {
            (*static_cast<const Body*>(any))(task, worker);
        };
        const std::size_t threads = shares_.size();
        for (std::size_t w = 0; w < threads; w++) {
            shares_[w].next.store(n_tasks * w / threads, std::memory_order_relaxed);
            shares_[w].end = n_tasks * (w + 1) / threads;
        }
        busy_.store(others_.size(), std::memory_order_relaxed);
        loops_.fetch_add(1, std::memory_order_release);
        work(0);
        for (int turn = 0; busy_.load(std::memory_order_acquire) > 0; turn++) wait(turn);
    }

   private:
    static void wait(int turn) {
        if (turn > 1000) std::this_thread::yield();
    }

    void work(int worker) {
        const std::size_t threads = shares_.size(), own = static_cast<std::size_t>(worker);
        for (std::size_t w = 0; w < threads; w++) {
            Share& share = shares_[(own + w) % threads];
            for (std::size_t task = share.next++; task < share.end; task = share.next++)
                call_(body_, task, worker);
        }
    }

    void serve(int worker) {
        for (unsigned seen = 0;; seen++) {
            for (int turn = 0; loops_.load(std::memory_order_acquire) == seen; turn++) wait(turn);
            if (body_ == nullptr) return;
            work(worker);
            busy_.fetch_sub(1, std::memory_order_release);
        }
    }

    // Of the present loop; written before loops_ is raised, read after.
    const void* body_ = nullptr;
    void (*call_)(const void*, std::size_t, int) = nullptr;
    struct alignas(64) Share {
        std::atomic<std::size_t> next{0};
        std::size_t end = 0;
    };
    std::vector<Share> shares_;

    std::atomic<std::size_t> busy_{0};
    std::atomic<unsigned> loops_{0};
    std::vector<std::thread> others_;  // last: started when all the rest is there
};

}  // namespace dpmix
