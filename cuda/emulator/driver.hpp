// Declarations that the files with libcuda's functions share.
#pragma once

#include "calls.hpp"
#include "stream.hpp"

#include <set>
#include <string>

namespace emulator {

// Numbers of `CUresult`.
enum Result : int {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    NO_BINARY_FOR_GPU = 209,
    PEER_ACCESS_UNSUPPORTED = 217,
    OPERATING_SYSTEM = 304,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    LAUNCH_OUT_OF_RESOURCES = 701,
    PEER_ACCESS_ALREADY_ENABLED = 704,
    PEER_ACCESS_NOT_ENABLED = 705,
    MISALIGNED_ADDRESS = 716,
    LAUNCH_FAILED = 719,
    COOPERATIVE_LAUNCH_TOO_LARGE = 720,
    NOT_SUPPORTED = 801,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    CAPTURE_UNMATCHED = 903,
    CAPTURE_UNJOINED = 904,
    CAPTURE_ISOLATION = 905,
    CAPTURED_EVENT = 907,
    CAPTURE_WRONG_THREAD = 908,
    INVALID_CLUSTER_SIZE = 912,
    UNKNOWN = 999,
};

// GPUs that there can be.
constexpr int GPUS_MAX = 8;

// The number of GPUs, and the one that calls of this thread are about.
int gpu_count();
int current_gpu();

// Returns true if kernels of a GPU may use memory of another one.
bool reaches(int gpu, int owner);
// Lets them.
void let_reach(int gpu, int owner);

// The name of an error for messages.
const char* result_name(int result);

// The result of a call of the system that failed for memory, from `errno`. Its text has the cause
// for this thread: too few descriptors are no lack of memory.
int system_error();

// Kinds of module images.
enum class Image : unsigned { Ptx, Cubin };
void count_image(Image image);

// Adds work to a stream, or to the graph that captures it.
inline int enqueue(Stream* stream, Stream::Work work, Stream::Leaves leaves = Stream::Leaves::AtStart) {
    return stream ? stream->push(std::move(work), leaves) : INVALID_HANDLE;
}

// The same for a launch, which waits while too much is enqueued.
int enqueue_launch(Stream* stream, Stream::Work work);

// Operations that a stream holds before launches wait.
void set_stream_capacity(size_t count);

// Waits for kernels that run on the GPU of this thread, if the rule is kept.
enum class Rule : unsigned;
void wait_if(Rule rule);

} // namespace emulator
