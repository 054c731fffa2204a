// What the engine keeps of every event, in memory or in a file; and the way of a pass through what is in files.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace dpmix {

inline std::size_t page_size() {
    static const std::size_t size = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    return size;
}

// Asks for large pages of a file that is mapped, and only read: threads that write to one wait for each other. The
// system then reads 4 MB at a time, whatever it is set to read ahead, and there are few faults.
inline void prefer_large_pages(const void* begin, std::size_t size) {
    const std::size_t beyond = reinterpret_cast<std::uintptr_t>(begin) % page_size();
    ::madvise(static_cast<char*>(const_cast<void*>(begin)) - beyond, size + beyond, MADV_HUGEPAGE);
}

// Numbers, 0 to begin with: in memory or, where there is a folder for them, mapped from a file there that has no
// name, so that nothing is left of it however the process ends.
class Buffer {
    struct Free {
        std::size_t mapped;  // bytes
        void operator()(std::uint16_t* numbers) const {
            if (mapped > 0) ::munmap(numbers, mapped);
            else delete[] numbers;
        }
    };
    std::unique_ptr<std::uint16_t[], Free> numbers_;

   public:
    Buffer() = default;

    // Throws a filesystem_error with the folder where no such file can be made. Room for all of it is taken at
    // once: where a disk fills up under a file that is mapped, the process ends without a word.
    Buffer(std::size_t n, const std::filesystem::path& folder) {
        if (folder.empty()) {
            numbers_.reset(new std::uint16_t[n]());
            return;
        }
        const std::size_t size = n * sizeof(std::uint16_t);
        std::string name = folder / "dpmix-XXXXXX";
        const int file = ::mkostemp(name.data(), O_CLOEXEC);
        if (file < 0) fail(errno, folder);
        ::unlink(name.c_str());
        int error;
        do error = ::posix_fallocate(file, 0, static_cast<off_t>(size));
        while (error == EINTR);
        void* memory = MAP_FAILED;
        if (error == 0) {
            memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
            if (memory == MAP_FAILED) error = errno;
        }
        ::close(file);
        if (error != 0) fail(error, folder);
        numbers_ = {static_cast<std::uint16_t*>(memory), Free{size}};
    }

    explicit operator bool() const { return numbers_ != nullptr; }
    bool in_file() const { return numbers_.get_deleter().mapped > 0; }
    std::uint16_t* data() { return numbers_.get(); }
    const std::uint16_t* data() const { return numbers_.get(); }

   private:
    [[noreturn]] static void fail(int error, const std::filesystem::path& folder) {
        const std::error_code code(error, std::generic_category());
        throw std::filesystem::filesystem_error("no room for a file", folder, code);
    }
};

// The way of a pass through the chunks, in order. Of what it reads and writes in files a thread of its own reads the
// chunks ahead, and those are let go that are done with: memory does not grow with the number of events, and nobody
// waits for a disk that keeps up.
class Passage {
   public:
    // Something in a file that is mapped and shared, so many bytes of each chunk.
    struct Span {
        const void* begin;
        std::size_t chunk, size;  // bytes
    };

    Passage(int threads, std::size_t first_chunk, std::vector<Span> spans)
        : spans_(std::move(spans)),
          threads_(static_cast<std::size_t>(threads)),
          done_(first_chunk),
          ready_(first_chunk),
          asked_(first_chunk) {
        for (const Span& span : spans_) chunk_bytes_ += span.chunk;
    }
    ~Passage() {
        wait();
        for_each_part(done_, asked_, let_go);
    }
    Passage(const Passage&) = delete;
    Passage& operator=(const Passage&) = delete;

    // Chunks to be worked on at a time, of those that are wanted: all, or where something is in a file as many as
    // make a window, but one for each thread.
    std::size_t window(std::size_t wanted) const {
        return spans_.empty() ? wanted : std::min(std::max(WINDOW / chunk_bytes_, threads_), wanted);
    }

    // The chunks from first to end - 1 are next: there when this returns.
    void at(std::size_t first, std::size_t end) {
        if (spans_.empty()) return;
        for_each_part(done_, first, let_go);
        done_ = first;
        if (end > ready_) {
            wait();
            for_each_part(asked_, end, read);
            ready_ = asked_ = std::max(asked_, end);
        }
        if (reading_.valid() && reading_.wait_for(std::chrono::seconds(0)) != std::future_status::ready)
            return;
        ready_ = asked_;  // and at most twice as much as is worked on, so that a pass is soon under way
        const std::size_t from = asked_, to = std::min(end + window(WINDOW), asked_ + 2 * (end - first));
        try {
            reading_ = std::async(std::launch::async, [=] { for_each_part(from, to, read); });
            asked_ = to;
        } catch (const std::system_error&) {
            // No more threads are to be had: the next chunks are read when they are next.
        }
    }

   private:
    static constexpr std::size_t WINDOW = std::size_t{32} << 20;  // bytes read ahead, and worked on at once

    std::vector<Span> spans_;
    std::size_t chunk_bytes_ = 0, threads_, done_, ready_, asked_;
    std::future<void> reading_;  // the chunks from ready_ to asked_ - 1

    void wait() const {
        if (reading_.valid()) reading_.wait();
    }

    // Maps the pages. An order to read ahead (MADV_WILLNEED) would be slower: the system takes small pages for it.
    static void read(char* begin, std::size_t size) {
        const volatile char* page = begin;
        for (std::size_t at = 0; at < size; at += page_size()) static_cast<void>(page[at]);
    }

    static void let_go(char* begin, std::size_t size) { ::madvise(begin, size, MADV_DONTNEED); }

    // Whole pages from the one with the first byte on: the last one may be the next chunk's, too.
    void for_each_part(std::size_t first, std::size_t end, void (*body)(char*, std::size_t)) const {
        for (const Span& span : spans_) {
            const std::size_t from = std::min(first * span.chunk, span.size);
            const std::size_t to = std::min(end * span.chunk, span.size);
            char* start = static_cast<char*>(const_cast<void*>(span.begin)) + from;
            const std::size_t beyond = reinterpret_cast<std::uintptr_t>(start) % page_size();
            if (from < to) body(start - beyond, to - from + beyond);
        }
    }
};

}  // namespace dpmix
