// Threads for one pass. They take part in each loop of the pass. A loop does not wait for a thread that has not
// entered it: on a busy machine that thread may come milliseconds later, when all is done. It then holds only
// the crew's shared state, so it may end at any time, and fork() is safe. Between loops the threads spin: a pass
// has many short loops, and waking a thread takes longer than some of these loops last. Between passes they
// sleep and are then woken by the next: a new thread often starts on the core of the one that makes it and
// waits there for milliseconds while another core is idle.
//
// Each thread first takes its own share of a loop's tasks, the same in every loop and pass, and then tasks
// that others have left. So its latest output is still in its cache. On two cores without a shared cache,
// tasks assigned in turn made two threads a fifth slower at D = 8.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace dpmix {

// Runs a task in another thread: one that has ended its task, or a new one. The task must not throw. Returns
// false, without running it, if no more threads are available.
bool run_beside(std::function<void()> task);

class Crew {
   public:
    explicit Crew(int threads) : shared_(std::make_shared<Shared>(threads)) {
        for (int worker = 1; worker < threads; worker++) {
            // Without it, the other threads do all tasks.
            if (!run_beside([shared = shared_, worker] { shared->serve(worker); })) break;
        }
    }

    ~Crew() { shared_->open = ENDED; }

    Crew(const Crew&) = delete;
    Crew& operator=(const Crew&) = delete;

    // Runs body(task, worker) for every task in [0, n_tasks), worker in [0, threads), in no particular order.
    // The body must not throw.
    template <class Body>
    void loop(std::size_t n_tasks, const Body& body) {
        Shared& shared = *shared_;
        shared.body = &body;
        shared.call = [](const void* any, std::size_t task, int worker) {
            (*static_cast<const Body*>(any))(task, worker);
        };
        const std::size_t threads = shared.shares.size();
        for (std::size_t w = 0; w < threads; w++) {
            shared.shares[w].next.store(n_tasks * w / threads, std::memory_order_relaxed);
            shared.shares[w].end = n_tasks * (w + 1) / threads;
        }
        shared.open = ++loops_;
        shared.work(0);
        shared.open = NONE;
        for (int turn = 0; shared.inside > 0; turn++) wait(turn);
    }

   private:
    static constexpr unsigned NONE = 0, ENDED = ~0u;

    static void wait(int turn) {
        if (turn > 1000) std::this_thread::yield();
    }

    struct Shared {
        explicit Shared(int threads) : shares(static_cast<std::size_t>(threads)) {}

        void work(int worker) {
            const std::size_t threads = shares.size(), own = static_cast<std::size_t>(worker);
            for (std::size_t w = 0; w < threads; w++) {
                Share& share = shares[(own + w) % threads];
                for (std::size_t task = share.next++; task < share.end; task = share.next++)
                    call(body, task, worker);
            }
        }

        // A loop waits for every thread that is inside while it is open. A thread enters and then looks; the
        // loop closes and then looks. All threads see one order of these (the default of atomics), so one
        // sees the other.
        void serve(int worker) {
            unsigned seen = NONE;
            while (true) {
                unsigned now = open;
                for (int turn = 0; now == NONE || now == seen; now = open, turn++) wait(turn);
                if (now == ENDED) return;
                inside++;
                if (open == now) work(worker);
                inside--;
                seen = now;
            }
        }

        // State of the open loop: written before it opens, read by the threads inside.
        const void* body = nullptr;
        void (*call)(const void*, std::size_t, int) = nullptr;
        struct alignas(64) Share {
            std::atomic<std::size_t> next{0};
            std::size_t end = 0;
        };
        std::vector<Share> shares;

        std::atomic<unsigned> open{NONE};  // the number of the loop, from 1
        std::atomic<int> inside{0};
    };

    std::shared_ptr<Shared> shared_;
    unsigned loops_ = 0;
};

}  // namespace dpmix
