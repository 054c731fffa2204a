// Calls of the CUDA driver, in order. A list of commands is a flat array of words: for each command its operation,
// the number of its words, and these. Entries of the driver come as addresses, so the build needs no CUDA. The
// caller, dpmix.engines.cuda.commands, writes the list; it must keep host memory and handles alive.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dpmix {

using Word = std::uint64_t;

enum Operation : Word { LAUNCH, COPY_UP, COPY_DOWN, FILL, RECORD, WAIT, SYNCHRONISE, ELAPSED, N_OPERATIONS };

struct Outcome {
    int error;  // of the driver; 0: none
    Word operation;
};

// Throws std::invalid_argument if a command is none of the operations, or has another number of words.
void check_commands(const Word* words, std::size_t n);

// Runs checked commands up to one that fails; entries: addresses of the driver's functions, by operation.
Outcome run_commands(const Word* entries, const Word* words, std::size_t n);

}  // namespace dpmix
