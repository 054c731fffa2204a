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
      slices_(new Slice[programs_.size()]),
      outcomes_(programs_.size()),
      running_(programs_.size()) {
    const std::size_t of_device = programs_[0]->n_sums;
    if (programs_.size() > 1 && n_sums_ < of_device) state_.reset(new double[of_device]);
}

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
        leave();
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

    merge(device);
    leave();
}

// Adds the sums of a device to the sums of the pass.
void Pass::merge(std::size_t device) {
    const Program& program = *programs_[device];
    const std::size_t n_devices = programs_.size(), n = program.n_sums / 4;
    if (n_devices == 1) {
        std::memcpy(sums_.get(), program.sums, n_sums_ * sizeof(double));
        return;
    }
    double* state = state_ ? state_.get() : sums_.get();
    for (std::size_t k = 0; k < n_devices; k++) {
        const std::size_t number = (device + k) % n_devices;
        const std::size_t first = n * number / n_devices, end = n * (number + 1) / n_devices;
        Slice& slice = slices_[number];
        const std::lock_guard<std::mutex> held(slice.lock);
        if (slice.n_devices++ > 0) Sums{state, n}.merge(first, end, program.sums);
        else
            for (std::size_t plane = 0; plane < 4 * n; plane += n)
                std::copy(program.sums + plane + first, program.sums + plane + end, state + plane + first);
        if (state_ && slice.n_devices == n_devices) values_of(state, n, first, end, sums_.get());
    }
}

// Ends the part of a device.
void Pass::leave() {
    const std::lock_guard<std::mutex> held(lock_);
    if (--running_ == 0) over_.notify_all();
}

void Line::post(std::shared_ptr<Pass> pass, std::size_t device) {
    {
        const std::lock_guard<std::mutex> held(lock_);
        parts_.push_back({std::move(pass), device});
    }
    news_.notify_one();  // without the lock, for which the thread would wait
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
