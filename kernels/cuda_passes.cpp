// Passes over the events on several devices (cuda_passes.hpp).
#include "cuda_passes.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <thread>
#include <utility>

#include "cpu/exact.hpp"

namespace dpmix {
namespace {

template <class T>
T* address(Word word) {
    return reinterpret_cast<T*>(static_cast<std::uintptr_t>(word));
}

// Length of the union of spans.
double union_length(std::vector<std::pair<double, double>> spans) {
    std::sort(spans.begin(), spans.end());
    double length = 0.0, reached = -std::numeric_limits<double>::infinity();
    for (const auto& [start, end] : spans) {
        length += std::max(0.0, end - std::max(start, reached));
        reached = std::max(reached, end);
    }
    return length;
}

}  // namespace

Busy busy_of(const float* milliseconds, std::size_t n) {
    std::vector<std::pair<double, double>> kernels, all;
    for (const float* at = milliseconds; at < milliseconds + 4 * n; at += 4) {
        kernels.emplace_back(at[1], at[2]);
        all.insert(all.end(), {{at[0], at[1]}, {at[1], at[2]}, {at[2], at[3]}});
    }
    const double in_kernels = union_length(std::move(kernels));
    return {in_kernels, union_length(std::move(all)) - in_kernels};
}

Pass::Pass(std::vector<std::shared_ptr<Program>> programs, std::vector<Word> values, std::size_t n_sums)
    : programs_(std::move(programs)),
      values_(std::move(values)),
      n_sums_(n_sums),
      sums_(new double[n_sums]),
      outcomes_(programs_.size()),
      running_(programs_.size()),
      parts_(programs_.size()) {}

void Pass::wait() {
    std::unique_lock<std::mutex> held(lock_);
    over_.wait(held, [this] { return running_ == 0; });
}

Outcome Pass::start(const Word* entries, std::size_t device) {
    Program& program = *programs_[device];
    for (const Hole& hole : program.holes) program.start[hole.place] = values_[hole.value];
    return run_commands(entries, program.start.data(), program.start.size());
}

void Pass::end(const Word* entries, std::size_t device, Outcome so_far) {
    const Program& program = *programs_[device];
    if (!so_far.error) so_far = run_commands(entries, program.after.data(), program.after.size());
    DeviceOutcome& outcome = outcomes_[device];
    outcome = {so_far.error, so_far.operation, false, 0, 0.0, 0.0};
    if (so_far.error) {
        leave(true);
        return;
    }
    std::vector<float> milliseconds;
    for (const Batch& batch : program.batches) {
        const auto* work = address<const Word>(batch.tallies);
        const auto* far = address<const std::uint32_t>(batch.tallies) + 2 * batch.n_slots;
        for (std::size_t slot = 0; slot < batch.n_chunks; slot++) {
            outcome.work += work[slot];
            outcome.far |= far[slot] != 0;
        }
        const auto* times = address<const float>(batch.milliseconds);
        milliseconds.insert(milliseconds.end(), times, times + 4);
    }
    const Busy busy = busy_of(milliseconds.data(), program.batches.size());
    outcome.kernels_ms = busy.kernels;
    outcome.copies_ms = busy.copies;

    double* own = const_cast<double*>(program.sums);
    if (programs_.size() == 1)
        std::memcpy(sums_.get(), own, n_sums_ * sizeof(double));
    else if (const std::size_t n = program.n_sums / 4; double* total = merged(own, n)) {
        if (n_sums_ == n)
            values_of(total, n, sums_.get());
        else
            std::memcpy(sums_.get(), total, n_sums_ * sizeof(double));
    }
    leave(false);
}

// Merges a device's sums with sums that wait for others. Returns all sums of the pass, or nothing if others follow:
// the sums then wait for them.
double* Pass::merged(double* own, std::size_t n) {
    for (;;) {
        double* other;
        {
            const std::lock_guard<std::mutex> held(lock_);
            if (parts_ == 1) return own;
            other = std::exchange(pending_, nullptr);
            if (!other) {
                pending_ = own;
                return nullptr;
            }
            parts_--;
        }
        Sums{own, n}.merge(other);
    }
}

// Ends the part of a device, without sums if it has failed.
void Pass::leave(bool failed) {
    const std::lock_guard<std::mutex> held(lock_);
    if (failed) parts_--;
    if (--running_ == 0) over_.notify_all();
}

void Line::post(std::shared_ptr<Pass> pass, std::size_t device) {
    const std::lock_guard<std::mutex> held(lock_);
    parts_.push_back({std::move(pass), device});
    news_.notify_one();
}

void Line::call() {
    const std::lock_guard<std::mutex> held(lock_);
    calls_++;
    news_.notify_one();
}

// Takes the next part; without one, `part` is empty. An idle thread waits. Returns whether there is a task of Python
// instead.
bool Line::next(bool idle, Part& part) {
    std::unique_lock<std::mutex> held(lock_);
    if (idle) news_.wait(held, [this] { return calls_ || !parts_.empty(); });
    if (!parts_.empty()) {
        part = std::move(parts_.front());
        parts_.pop_front();
    } else if (idle) {
        calls_--;
        return true;
    }
    return false;
}

void Line::serve(const Word* entries) {
    std::deque<Part> running;
    for (;;) {
        Part part{};
        const bool idle = running.empty();
        if (next(idle, part)) return;
        if (part.pass) {
            const int refused = idle ? push_context(entries, part.pass->program(part.device).context) : 0;
            const Outcome outcome = refused ? Outcome{refused, PUSH} : part.pass->start(entries, part.device);
            if (!outcome.error) {
                running.push_back(std::move(part));
                continue;
            }
            part.pass->end(entries, part.device, outcome);
            if (idle && !refused) pop_context(entries);
            continue;
        }
        const Part& first = running.front();
        const Program& program = first.pass->program(first.device);
        const Outcome outcome{program.blocking ? synchronise_event(entries, program.ended)
                                               : query_event(entries, program.ended),
                              QUERY};
        if (outcome.error == NOT_READY) {
            std::this_thread::yield();
            continue;
        }
        first.pass->end(entries, first.device, outcome);
        running.pop_front();
        if (running.empty()) pop_context(entries);
    }
}

}  // namespace dpmix
