// Declarations that the files with libcuda's functions share.
#pragma once

#include "stream.hpp"

namespace emulator {

// Numbers of `CUresult`.
enum Result : int {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    PEER_ACCESS_UNSUPPORTED = 217,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    PEER_ACCESS_ALREADY_ENABLED = 704,
    LAUNCH_FAILED = 719,
    COOPERATIVE_LAUNCH_TOO_LARGE = 720,
    NOT_SUPPORTED = 801,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    UNKNOWN = 999,
};

// GPUs that there can be.
constexpr int GPUS_MAX = 8;

// The GPU that calls of this thread are about.
int current_gpu();

// Returns true if this thread captures no stream, or captures in the mode that allows allocations.
bool may_allocate();

// Adds work to a stream, or to the graph that captures it.
inline int enqueue(Stream* stream, Stream::Work work) {
    return stream ? stream->push(std::move(work)), SUCCESS : INVALID_HANDLE;
}

// The same for a launch, which waits while too much is enqueued.
int enqueue_launch(Stream* stream, Stream::Work work);

} // namespace emulator
