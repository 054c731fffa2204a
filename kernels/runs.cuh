// Runs: events of one component in one chunk, at most RUN of them, whose moments one block sums. The moments of
// a component in a chunk are the sums of its runs, added in order, so they do not depend on the launch.
#pragma once

#include "mixture.cuh"

constexpr int RUN = 2048;
constexpr int EXTRAS = CHUNK / RUN;  // more runs than that, after the first of each component, do not exist
constexpr unsigned NO_RUN = 0xFFFFFFFFu;

__device__ __forceinline__ unsigned run_of(int component, int number) {
    return (unsigned)component | (unsigned)number << 16;
}
