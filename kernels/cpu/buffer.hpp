// Memory for values of every event, in memory or in a file; and the paging of files during a pass.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <future>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "pages.hpp"

namespace dpmix {

// Values of every event, of a fixed size each.
struct Values {
    const void* begin;
    std::size_t size;  // bytes
    bool in_file;
};

// An array of numbers, initially 0: in memory or, given a folder, in an unnamed file there.
template <class Number>
class Buffer {
    std::unique_ptr<Number[]> own_;
    std::unique_ptr<MappedFile> file_;

   public:
    Buffer() = default;

    // Throws as MappedFile does.
    Buffer(std::size_t n, const std::filesystem::path& folder) {
        if (folder.empty()) own_ = std::make_unique<Number[]>(n);
        else file_ = std::make_unique<MappedFile>(folder, n * sizeof(Number));
    }

    explicit operator bool() const { return data() != nullptr; }
    Number* data() { return file_ == nullptr ? own_.get() : static_cast<Number*>(file_->begin()); }
    const Number* data() const { return const_cast<Buffer*>(this)->data(); }
    Values values() const { return {data(), sizeof(Number), file_ != nullptr}; }
};

// The order of a pass through the chunks. A separate thread reads the next chunks of files ahead, and
// finished chunks are released. So memory does not grow with the number of events, and no thread waits for a
// disk that keeps up.
class Passage {
   public:
    // A range of a mapped and shared file, with a fixed number of bytes for each chunk.
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
        for_each_part(done_, asked_, release_pages);
    }
    Passage(const Passage&) = delete;
    Passage& operator=(const Passage&) = delete;

    // The number of chunks to work on at a time: all that are wanted or, if something is in a file, as many
    // as a window holds, but at least one for each thread.
    std::size_t window(std::size_t wanted) const {
        return spans_.empty() ? wanted : std::min(std::max(WINDOW / chunk_bytes_, threads_), wanted);
    }

    // Makes the chunks first, ..., end - 1 available; returns when they are.
    void at(std::size_t first, std::size_t end) {
        if (spans_.empty()) return;
        for_each_part(done_, first, release_pages);
        done_ = first;
        if (end > ready_) {
            wait();
            for_each_part(asked_, end, read);
            ready_ = asked_ = std::max(asked_, end);
        }
        if (reading_.valid() && reading_.wait_for(std::chrono::seconds(0)) != std::future_status::ready)
            return;
        ready_ = asked_;  // at most twice the chunks in work, so that a pass starts soon
        const std::size_t from = asked_, to = std::min(end + window(WINDOW), asked_ + 2 * (end - first));
        try {
            reading_ = std::async(std::launch::async, [=] { for_each_part(from, to, read); });
            asked_ = to;
        } catch (const std::system_error&) {
            // No thread is available: the next chunks are read when they are needed.
        }
    }

    // Calls body(from, to) for windows of the chunks first, ..., end - 1, in order.
    template <class Body>
    void for_each_window(std::size_t first, std::size_t end, const Body& body) {
        const std::size_t size = window(end - first);
        for (; first < end; first += size) {
            at(first, std::min(first + size, end));
            body(first, std::min(first + size, end));
        }
    }

   private:
    static constexpr std::size_t WINDOW = std::size_t{32} << 20;  // bytes read ahead and worked on at a time

    std::vector<Span> spans_;
    std::size_t chunk_bytes_ = 0, threads_, done_, ready_, asked_;
    std::future<void> reading_;  // the chunks ready_, ..., asked_ - 1

    void wait() const {
        if (reading_.valid()) reading_.wait();
    }

    // Maps the pages. A request to read ahead (MADV_WILLNEED) would be slower: the system uses small pages
    // for it.
    static void read(char* begin, std::size_t size) {
        const volatile char* page = begin;
        for (std::size_t at = 0; at < size; at += page_size()) static_cast<void>(page[at]);
    }

    // Whole pages from the page of the first byte on; the last page may belong to the next chunk too.
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
