// The built-ins of CUDA that the kernels use, for kernels compiled by g++.
#pragma once

#include <stdint.h>

namespace emulator {

struct Index {
    unsigned x, y, z;
};

// Position of a CUDA thread.
struct Place {
    Index thread, block, block_size, grid_size;
};

// Position of the running thread.
const Place& place();

// Waits until all threads of the block are here. Returns true if all of them passed a true `vote`.
bool sync_threads(bool vote, const char* file, int line);

// Lets other threads run, of this block and of others.
void relax();

// Often delays the block, so that readers of the data just published overtake writes that should
// have come before.
void published();

// A thread accesses so many bytes at an address that is no multiple of them. On a GPU the launch
// fails.
void misaligned(const void* address, unsigned bytes);

uint64_t now_ns();

// The memory behind an address of a multicast object, one place for each GPU; 0 if it is none.
unsigned multicast_copies(const void* address, void* (&copies)[8]);

// A kernel by its name, for launches.
struct Kernel {
    using Body = void (*)(const void* arguments);

    Kernel(const char* name, unsigned bytes, Body body);

    const char* name;
    // Size of the argument struct.
    unsigned bytes;
    Body body;
    Kernel* next;
};

} // namespace emulator

#define threadIdx (emulator::place().thread)
#define blockIdx (emulator::place().block)
#define blockDim (emulator::place().block_size)
#define gridDim (emulator::place().grid_size)
#define __syncthreads() ((void)emulator::sync_threads(true, __FILE__, __LINE__))
#define __syncthreads_and(vote) (emulator::sync_threads(vote, __FILE__, __LINE__))
// A block has an operating system's thread of its own.
#define __shared__ static thread_local
