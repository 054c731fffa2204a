#include "parallel.hpp"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#if !defined(_WIN32)
#include <pthread.h>
#endif

namespace dpmix {
namespace {

struct Helper {
    std::condition_variable woken;
    std::function<void()> task;  // none while it waits
};

// The threads of a process that wait for a task, at most one for each core. The last one to wait is the first
// to be woken.
class Helpers {
   public:
    bool run(std::function<void()> task) {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (!waiting_.empty()) {
            Helper& helper = *waiting_.back();
            waiting_.pop_back();
            helper.task = std::move(task);
            helper.woken.notify_one();
            return true;
        }
        try {
            std::thread([this, first = std::move(task)]() mutable { serve(std::move(first)); }).detach();
        } catch (const std::system_error&) {
            return false;
        }
        return true;
    }

   private:
    void serve(std::function<void()> first) {
        Helper helper{{}, std::move(first)};
        while (true) {
            helper.task();
            helper.task = nullptr;
            std::unique_lock<std::mutex> lock(mutex_);
            if (waiting_.size() >= most_) return;
            waiting_.push_back(&helper);
            helper.woken.wait(lock, [&] { return helper.task != nullptr; });
        }
    }

    // A busy machine may be so late with a thread that the next passes start others.
    const std::size_t most_ = std::max(1u, std::thread::hardware_concurrency());
    std::mutex mutex_;
    std::vector<Helper*> waiting_;
};

// Never freed: its threads wait until the process ends.
Helpers* helpers = nullptr;

bool make_helpers() {
    helpers = new Helpers;
#if !defined(_WIN32)
    pthread_atfork(nullptr, nullptr, [] { helpers = new Helpers; });  // a child has no thread of its parent
#endif
    return true;
}

}  // namespace

bool run_beside(std::function<void()> task) {
    static const bool made = make_helpers();
    return made && helpers->run(std::move(task));
}

}  // namespace dpmix
