// The interface between the driver and a module: for each kernel NAME, a module exports a function NAME__cpu
// of type LaunchFunction.
#pragma once
#include <cstddef>

namespace cuda_cpu {

struct Launch {
    unsigned grid[3], block[3];
    const void* arguments = nullptr;  // packed as cuLaunchKernel takes them: each at its natural alignment
    size_t argument_bytes = 0;
    unsigned os_threads = 1;
    unsigned order = 0;  // of a block's threads: 0 forward, 1 reverse, more: the seed of a random order
    // Sets the start and the end of the device memory around an address, or returns false; null: any address is
    // one of the device.
    bool (*find_memory)(const void* owner, const void* address, const void* bounds[2]) = nullptr;
    const void* owner = nullptr;
    // Gives the memory for the stacks of earlier launches again, or null; and takes it back. Null: each launch has
    // its own memory.
    char* (*take_stacks)(size_t bytes) = nullptr;
    void (*keep_stacks)(char* memory, size_t bytes) = nullptr;
};

using LaunchFunction = const char* (*)(const Launch*);  // returns the error, or null

}  // namespace cuda_cpu
