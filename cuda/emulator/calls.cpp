#include "calls.hpp"

#include "capture.hpp"
#include "driver.hpp"
#include "emulator.h"
#include "rules.hpp"

#include <string.h>

namespace emulator {

namespace {

// The list of all functions that were called, newest first.
std::atomic<Call*> calls{nullptr};
std::atomic<uint64_t> images[2];
std::atomic<int> errors[GPUS_MAX];

// Returns true for the name of a function, with or without the number of its version.
bool names(const Call& call, const char* name) {
    size_t length = strlen(name);
    return strncmp(call.name, name, length) == 0 && (!call.name[length] || strncmp(call.name + length, "_v", 2) == 0);
}

} // namespace

Call::Call(const char* name) : name(name), next(calls) {
    while (!calls.compare_exchange_weak(next, this)) {
    }
}

int Call::enter(unsigned kind) {
    count++;
    if (kind & CONTEXT) {
        int gpu = current_gpu();
        if (on(Rule::ContextLock)) {
            std::lock_guard wait(context_lock(gpu));
        }
        if (int error = error_left(gpu)) {
            return error;
        }
    }
    return kind & UNSAFE ? refuse_unsafe() : SUCCESS;
}

std::mutex& context_lock(int gpu) {
    static std::mutex* const locks = new std::mutex[GPUS_MAX];
    return locks[gpu];
}

void leave_error(int gpu, int error) {
    int none = 0;
    errors[gpu].compare_exchange_strong(none, error);
}

void clear_error(int gpu) { errors[gpu] = 0; }

int error_left(int gpu) { return on(Rule::StickyErrors) ? errors[gpu].load() : SUCCESS; }

void count_image(Image image) { images[unsigned(image)]++; }

} // namespace emulator

using namespace emulator;

uint64_t unisono_call_count(const char* name) {
    uint64_t count = 0;
    for (Call* call = calls; call; call = call->next) {
        count += names(*call, name) ? call->count.load() : 0;
    }
    return count;
}

const char* unisono_call(uint32_t index) {
    Call* call = calls;
    while (call && index-- > 0) {
        call = call->next;
    }
    return call ? call->name : nullptr;
}

uint64_t unisono_images(uint32_t kind) { return kind < 2 ? images[kind].load() : 0; }
