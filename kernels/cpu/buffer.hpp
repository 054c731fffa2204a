// What the engine keeps of every event, in memory or in a file; and the way of a pass through what is in files.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace dpmix {

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
        const int file = ::mkstemp(name.data());
        if (file < 0) fail(errno, folder);
        ::unlink(name.c_str());
        int error = ::posix_fallocate(file, 0, static_cast<off_t>(size));
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

// The way of a pass through the chunks, in order. Of what it reads and writes in files the system is asked for the
// chunks ahead, and lets those go that are done with: memory does not grow with the number of events.
class Passage {
    struct Span {
        char* begin;
        std::size_t chunk, size;  // bytes
    };
    static constexpr std::size_t WINDOW = std::size_t{32}
                                          << 20;  // bytes asked for ahead, and worked on at once

    std::vector<Span> spans_;
    std::size_t chunk_bytes_ = 0, threads_, done_, asked_;

   public:
    Passage(int threads, std::size_t first_chunk)
        : threads_(static_cast<std::size_t>(threads)), done_(first_chunk), asked_(first_chunk) {}
    ~Passage() { advise(MADV_DONTNEED, done_, asked_); }
    Passage(Passage&&) = default;

    // Something shared in a file, so many bytes of each chunk.
    void take(const void* begin, std::size_t chunk, std::size_t size) {
        spans_.push_back({static_cast<char*>(const_cast<void*>(begin)), chunk, size});
        chunk_bytes_ += chunk;
    }

    // Chunks to be worked on at a time, of those that are wanted: all, or where something is in a file as many as
    // make a window, but one for each thread.
    std::size_t window(std::size_t wanted) const {
        return spans_.empty() ? wanted : std::min(std::max(WINDOW / chunk_bytes_, threads_), wanted);
    }

    // The chunks from first to end - 1 are next.
    void at(std::size_t first, std::size_t end) {
        if (spans_.empty()) return;
        advise(MADV_DONTNEED, done_, first);
        done_ = first;
        const std::size_t ahead = end + window(WINDOW);
        advise(MADV_WILLNEED, std::max(asked_, first), ahead);
        asked_ = std::max(asked_, ahead);
    }

   private:
    // Whole pages from the one with the first byte on: the last one may be the next chunk's, too.
    void advise(int what, std::size_t first, std::size_t end) const {
        static const std::size_t page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
        for (const Span& span : spans_) {
            const std::size_t from = std::min(first * span.chunk, span.size);
            const std::size_t to = std::min(end * span.chunk, span.size);
            char* start = span.begin + from;
            const std::size_t beyond = reinterpret_cast<std::uintptr_t>(start) % page;
            if (from < to) ::madvise(start - beyond, to - from + beyond, what);
        }
    }
};

}  // namespace dpmix
