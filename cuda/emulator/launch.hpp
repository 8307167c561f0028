// Kernels by name, and launches of them.
#pragma once

#include "device.hpp"

namespace emulator {

// The kernel of this name; null if there is none.
const Kernel* find(const char* name);

// Blocks that can be resident at once on a GPU.
unsigned max_resident_blocks();

// Returns true if so many blocks can be resident at once.
bool fits(unsigned blocks);

// Priorities that streams can have.
constexpr unsigned PRIORITIES = 6;

// GPU and urgency of a launch. The most urgent launch runs first.
struct LaunchPriority {
    int gpu;
    unsigned urgency;
};

// Runs a kernel to its end. 0, or 1: then `unisono_error` says why.
int run(const Kernel& kernel, const void* arguments, unsigned blocks, unsigned threads, LaunchPriority turn);

} // namespace emulator
