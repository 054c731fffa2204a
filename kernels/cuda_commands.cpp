// Calls of the CUDA driver in a list (cuda_commands.hpp).
#include "cuda_commands.hpp"

#include <cstdint>
#include <cstring>
#include <stdexcept>

namespace dpmix {
namespace {

constexpr int INVALID_VALUE = 1;                                         // CUDA_ERROR_INVALID_VALUE
constexpr std::size_t LAUNCH_WORDS = 6;                                  // before the arguments
constexpr std::size_t MAX_ARGUMENTS = 64;                                // a mask has a bit for each
constexpr Word FIXED_WORDS[N_OPERATIONS] = {0, 4, 4, 4, 2, 2, 1, 3, 3};  // 0: any number

void* pointer(Word word) { return reinterpret_cast<void*>(static_cast<std::uintptr_t>(word)); }

template <class Entry>
Entry entry(const Word* entries, Word operation) {
    return reinterpret_cast<Entry>(static_cast<std::uintptr_t>(entries[operation]));
}

// Words: kernel, stream, blocks in x and y, threads, the mask of arguments of 8 bytes (others have 4), arguments.
int launch(const Word* entries, const Word* words, std::size_t n_words) {
    using Launch = int (*)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*,
                           void**, void**);
    alignas(8) char packed[8 * MAX_ARGUMENTS] = {};
    std::size_t bytes = 0;
    const std::size_t n_arguments = n_words - LAUNCH_WORDS;
    for (std::size_t i = 0; i < n_arguments; i++) {
        const Word value = words[LAUNCH_WORDS + i];
        if (words[5] >> i & 1) {
            bytes = (bytes + 7) / 8 * 8;
            std::memcpy(packed + bytes, &value, 8);
            bytes += 8;
        } else {
            if (value >> 32) return INVALID_VALUE;
            const std::uint32_t half = static_cast<std::uint32_t>(value);
            std::memcpy(packed + bytes, &half, 4);
            bytes += 4;
        }
    }
    // CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE, CU_LAUNCH_PARAM_END
    void* how[] = {pointer(1), packed, pointer(2), &bytes, pointer(0)};
    return entry<Launch>(entries, LAUNCH)(pointer(words[0]), static_cast<unsigned>(words[2]),
                                          static_cast<unsigned>(words[3]), 1, static_cast<unsigned>(words[4]),
                                          1, 1, 0, pointer(words[1]), nullptr, how);
}

int run_one(const Word* entries, Word operation, const Word* words, std::size_t n_words) {
    using CopyUp = int (*)(Word, const void*, std::size_t, void*);
    using CopyDown = int (*)(void*, Word, std::size_t, void*);
    using Fill = int (*)(Word, unsigned, std::size_t, void*);
    using Record = int (*)(void*, void*);
    using Wait = int (*)(void*, void*, unsigned);
    using Synchronise = int (*)(void*);
    using Elapsed = int (*)(float*, void*, void*);
    switch (operation) {
        case LAUNCH: return launch(entries, words, n_words);
        case COPY_UP:  // address on the device, host memory, bytes, stream
            return entry<CopyUp>(entries, COPY_UP)(words[0], pointer(words[1]), words[2], pointer(words[3]));
        case COPY_DOWN:  // host memory, address on the device, bytes, stream
            return entry<CopyDown>(entries, COPY_DOWN)(pointer(words[0]), words[1], words[2],
                                                       pointer(words[3]));
        case FILL:  // address on the device, value of 4 bytes, number, stream
            return entry<Fill>(entries, FILL)(words[0], static_cast<unsigned>(words[1]), words[2],
                                              pointer(words[3]));
        case RECORD:  // event, stream
            return entry<Record>(entries, RECORD)(pointer(words[0]), pointer(words[1]));
        case WAIT:  // stream, event
            return entry<Wait>(entries, WAIT)(pointer(words[0]), pointer(words[1]), 0);
        case SYNCHRONISE:  // event
            return entry<Synchronise>(entries, SYNCHRONISE)(pointer(words[0]));
        case ELAPSED:  // float of the host, first event, second event
            return entry<Elapsed>(entries, ELAPSED)(static_cast<float*>(pointer(words[0])), pointer(words[1]),
                                                    pointer(words[2]));
        default:  // COPY_HERE: to, from, bytes
            std::memcpy(pointer(words[0]), pointer(words[1]), words[2]);
            return 0;
    }
}

}  // namespace

void check_commands(const Word* words, std::size_t n) {
    for (std::size_t at = 0; at < n; at += 2 + words[at + 1]) {
        const bool whole = n - at >= 2 && words[at + 1] <= n - at - 2;
        if (!whole || words[at] >= N_OPERATIONS) throw std::invalid_argument("commands: no such command");
        const Word fixed = FIXED_WORDS[words[at]], size = words[at + 1];
        if (fixed ? size != fixed : size < LAUNCH_WORDS || size > LAUNCH_WORDS + MAX_ARGUMENTS)
            throw std::invalid_argument("commands: a command has another number of words");
    }
}

Outcome run_commands(const Word* entries, const Word* words, std::size_t n) {
    Outcome last{0, 0};
    for (std::size_t at = 0; at < n && !last.error; at += 2 + words[at + 1])
        last = {run_one(entries, words[at], words + at + 2, words[at + 1]), words[at]};
    return last;
}

int query_event(const Word* entries, Word event) {
    return entry<int (*)(void*)>(entries, QUERY)(pointer(event));
}

int synchronise_event(const Word* entries, Word event) {
    return entry<int (*)(void*)>(entries, SYNCHRONISE)(pointer(event));
}

int push_context(const Word* entries, Word context) {
    return entry<int (*)(void*)>(entries, PUSH)(pointer(context));
}

void pop_context(const Word* entries) {
    void* popped = nullptr;
    entry<int (*)(void**)>(entries, POP)(&popped);
}

}  // namespace dpmix
