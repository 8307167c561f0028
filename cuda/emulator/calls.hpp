// What every function of libcuda does first: it is counted, and refused where a driver would.
#pragma once

#include <atomic>
#include <mutex>
#include <stdint.h>

namespace emulator {

// Calls of one function, by its name.
class Call {
public:
    explicit Call(const char* name);
    // Counts a call. Returns why it is refused, or SUCCESS.
    int enter(unsigned kind);

    const char* const name;
    std::atomic<uint64_t> count{0};
    Call* next;
};

// Kinds of functions, to be added.
enum CallKind : unsigned {
    // Works without a context.
    PLAIN = 0,
    // Needs the context: waits for its lock, and returns the error that it is left with.
    CONTEXT = 1,
    // Potentially unsafe during a capture.
    UNSAFE = 2,
};

// The lock of a GPU's context.
std::mutex& context_lock(int gpu);

// The error that a context is left with by a kernel. All its calls return it from then on.
void leave_error(int gpu, int error);
void clear_error(int gpu);
// That error, or SUCCESS.
int error_left(int gpu);

} // namespace emulator

#define CALL(kind)                                       \
    static emulator::Call& call_ = *new emulator::Call(__func__); \
    if (int refused_ = call_.enter(kind)) {              \
        return refused_;                                 \
    }
