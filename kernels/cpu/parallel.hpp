// Threads for one pass: started once, they take part in each of its loops. None is waited for that has not come:
// on a busy machine it can come milliseconds later, when all is done. It holds nothing then but what the crew
// shares, so that it may end when it likes, and fork() is safe. Between loops they spin: a pass has many short
// loops, and a thread that sleeps (or is started anew) takes longer to come back than some of them last.
//
// Each thread takes its own share of a loop's tasks first, the same share in every loop and pass, and then
// what others have left: what it wrote last is still in its cache. Where two cores share none, tasks dealt
// out in turn made two threads a fifth slower at D = 8.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <system_error>
#include <thread>
#include <vector>

namespace dpmix {

class Crew {
   public:
    explicit Crew(int threads) : shared_(std::make_shared<Shared>(threads)) {
        for (int worker = 1; worker < threads; worker++) {
            try {
                std::thread([shared = shared_, worker] { shared->serve(worker); }).detach();
            } catch (const std::system_error&) {
                break;  // no more threads are to be had: the ones there are do all tasks
            }
        }
    }

    ~Crew() { shared_->open = ENDED; }

    Crew(const Crew&) = delete;
    Crew& operator=(const Crew&) = delete;

    // Runs body(task, worker) for every task in [0, n_tasks), worker in [0, threads); no order is promised.
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

        // Whoever is inside while a loop is open is waited for. To come in and then look, and to close and then
        // look, in one order for all (the default of atomics): one of the two sees the other.
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

        // Of the open loop; written before it is opened, read by those inside.
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
