// Limits shared by the CUDA kernels and the C++ of kernels/cpu; layout.py repeats them for Python.
#pragma once

constexpr int MAX_CHANNELS = 64;
constexpr int MAX_COMPONENTS = 4096;
constexpr int CHUNK = 65536;  // consecutive events of the grid; an event's index in its chunk fits 16 bits

// If the best float32 log density of an event is below this, the event is computed again in float64.
constexpr float FAR = -4.0e4f;
