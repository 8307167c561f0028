// Kernels by name, and launches of them.
#pragma once

#include "device.hpp"

namespace emulator {

// The kernel of this name; null if there is none.
const Kernel* find(const char* name);

// Registers and threads that a multiprocessor has room for.
constexpr unsigned REGISTERS = 65536, THREADS = 2048;

// Multiprocessors of a GPU.
unsigned multiprocessors();

// Registers of a thread, and the most threads of a block.
unsigned registers(const Kernel& kernel);
unsigned threads_max(const Kernel& kernel);

// Blocks of so many threads that a multiprocessor has room for at once; 0 if it has room for none.
unsigned blocks_together(const Kernel& kernel, unsigned threads);

// Returns true if so many blocks can be resident at once, of which so many fit on a multiprocessor.
bool fits(unsigned blocks, unsigned together);

// Waits for the launches that run on a GPU now.
void wait_for_running(int gpu);

// Priorities that streams can have.
constexpr unsigned PRIORITIES = 6;

// GPU and urgency of a launch. The most urgent launch runs first.
struct LaunchPriority {
    int gpu;
    unsigned urgency;
};

// Runs a kernel to its end. SUCCESS, or an error: then `unisono_error` says why.
int run(const Kernel& kernel, const void* arguments, unsigned blocks, unsigned threads, LaunchPriority turn);

} // namespace emulator
