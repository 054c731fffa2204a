// Independent tasks on threads that live for one call: nothing to shut down, and safe across fork().
#pragma once

#include <atomic>
#include <cstddef>
#include <system_error>
#include <thread>
#include <vector>

namespace dpmix {

// Runs body(task, worker) for every task in [0, n_tasks), worker in [0, threads); no order is promised.
// The body must not throw.
template <class Body>
void parallel_for(std::size_t n_tasks, int threads, const Body& body) {
    std::atomic<std::size_t> next{0};
    const auto work = [&](int worker) {
        for (std::size_t task = next++; task < n_tasks; task = next++) body(task, worker);
    };
    std::vector<std::thread> others;
    for (int worker = 1; worker < threads && static_cast<std::size_t>(worker) < n_tasks; worker++) {
        try {
            others.emplace_back(work, worker);
        } catch (const std::system_error&) {
            break;  // no more threads are to be had: the ones there are do all tasks
        }
    }
    work(0);
    for (std::thread& other : others) other.join();
}

}  // namespace dpmix
