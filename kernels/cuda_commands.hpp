// Calls of the CUDA driver, in order. A list of commands is a flat array of words: for each command its operation,
// the number of its words, and these. Entries of the driver come as addresses, so the build needs no CUDA. The
// caller, dpmix.engines.cuda.commands, writes the list; it must keep host memory and handles alive.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dpmix {

using Word = std::uint64_t;

// COPY_HERE copies host memory to host memory, without the driver. The last three are not for lists.
enum Operation : Word {
    LAUNCH,
    COPY_UP,
    COPY_DOWN,
    FILL,
    RECORD,
    WAIT,
    SYNCHRONISE,
    ELAPSED,
    COPY_HERE,
    N_OPERATIONS,
    QUERY = N_OPERATIONS,
    PUSH,
    POP,
    N_ENTRIES
};

struct Outcome {
    int error;  // of the driver; 0: none
    Word operation;
};

// Throws std::invalid_argument if a command is none of the operations, or has another number of words.
void check_commands(const Word* words, std::size_t n);

// Runs checked commands up to one that fails; entries: addresses of the driver's functions, by operation.
Outcome run_commands(const Word* entries, const Word* words, std::size_t n);

// Asks for an event: an error of the driver; 0: it has happened; NOT_READY.
constexpr int NOT_READY = 600;
int query_event(const Word* entries, Word event);

// Waits for an event.
int synchronise_event(const Word* entries, Word event);

// Makes a context current in this thread, and the one before it.
int push_context(const Word* entries, Word context);
void pop_context(const Word* entries);

}  // namespace dpmix
