// Passes over the events on several devices. Each device has a list of calls of the driver for its part of a pass
// (cuda_commands.hpp), which its own thread makes. The thread reads the device's sums and merges them into the sums
// of the pass, slice by slice, each device from another slice on: so devices that end at a time do not wait for each
// other. No thread needs the interpreter here.
//
// A thread queues the calls of the next pass before it waits for the pass before, if the next one is there: the
// device then has work while the host reads sums.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "cuda_commands.hpp"

namespace dpmix {

// A word of a list that each pass replaces by one of its values.
struct Hole {
    Word place, value;
};

// Results of a batch of chunks in page-locked memory: of each slot the work, 8 bytes, and the far events, 4 bytes;
// and the milliseconds of four events: start, input on the device, results there, results on the host.
struct Batch {
    Word tallies, n_slots, n_chunks, milliseconds;
};

// The part of one device in a pass. Its memory belongs to one pass at a time. (The base class lets a thread without
// the interpreter release it.)
struct Program : std::enable_shared_from_this<Program> {
    std::vector<Word> start, after;  // calls up to the event `ended`, and those after it has happened
    std::vector<Hole> holes;         // of `start`
    std::vector<Batch> batches;
    Word context, ended;
    const double* sums;  // in page-locked memory: the state [4, n], or values [n]
    std::size_t n_sums;  // numbers of it
    bool blocking;       // the thread sleeps while it waits
};

struct DeviceOutcome {
    int error;  // of the driver; 0: none
    Word operation;
    bool far;   // the pass must be made again, with the mixture in float64
    Word work;  // of all chunks
    double kernels_ms, copies_ms;
};

// Returns the milliseconds in which kernels ran, and in which only copies ran; milliseconds [n, 4] as in `Batch`.
struct Busy {
    double kernels, copies;
};
Busy busy_of(const float* milliseconds, std::size_t n);

// A pass in progress on several devices.
class Pass : public std::enable_shared_from_this<Pass> {
   public:
    // values: for the holes. The sums are the state [4, n], or values [n] if n_sums is a quarter of a
    // program's; a single program's are copied.
    Pass(std::vector<std::shared_ptr<Program>> programs, std::vector<Word> values, std::size_t n_sums);

    // Waits until all devices have ended.
    void wait();

    // After `wait`. The sums hold if no device has an error or far events.
    const std::vector<DeviceOutcome>& outcomes() const { return outcomes_; }
    double* sums() const { return sums_.get(); }
    std::size_t n_sums() const { return n_sums_; }

    const Program& program(std::size_t device) const { return *programs_[device]; }

    // For the threads of the devices: queue the calls of a device, and end its part.
    Outcome start(const Word* entries, std::size_t device);
    void end(const Word* entries, std::size_t device, Outcome so_far);

   private:
    // A part of the sums, which is rounded when all devices have added theirs.
    struct Slice {
        std::mutex lock;
        std::size_t n_devices = 0;
    };
    void merge(std::size_t device);
    void leave();

    const std::vector<std::shared_ptr<Program>> programs_;
    const std::vector<Word> values_;
    const std::size_t n_sums_;
    const std::unique_ptr<double[]> sums_;
    std::unique_ptr<double[]> state_;  // of several devices, if their sums are rounded
    const std::unique_ptr<Slice[]> slices_;
    std::vector<DeviceOutcome> outcomes_;

    std::mutex lock_;
    std::condition_variable over_;
    std::size_t running_;  // devices that have not ended
};

// What a device's thread has to do: its parts of passes, and tasks of Python.
class Line : public std::enable_shared_from_this<Line> {
   public:
    // Adds a part of a pass.
    void post(std::shared_ptr<Pass> pass, std::size_t device);

    // Lets `serve` return once, when all passes posted before have ended.
    void call();

    // Makes the parts of passes until there is a task of Python.
    void serve(const Word* entries);

   private:
    struct Part {
        std::shared_ptr<Pass> pass;
        std::size_t device;
    };
    bool next(bool idle, Part& part);

    std::mutex lock_;
    std::condition_variable news_;
    std::deque<Part> parts_;
    std::size_t calls_ = 0;
};

}  // namespace dpmix
