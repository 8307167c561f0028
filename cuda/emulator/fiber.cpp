// Jumps go from stack to stack, which checks of the C library take for a mistake.
#undef _FORTIFY_SOURCE

#include "fiber.hpp"

#include "race.hpp"

#include <mutex>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <vector>

namespace emulator {

namespace {

// Free stacks.
struct Pool {
    std::mutex mutex;
    std::vector<void*> stacks;

#ifdef UNISONO_RACES
    ~Pool() {
        for (void* stack : stacks) {
            munmap(stack, Stack::BYTES);
        }
    }
#endif
};

#ifdef UNISONO_RACES
// A lock that blocks share would order what nothing orders on a GPU.
thread_local Pool pool;
#else
// Streams may outlive what is destroyed when the process ends.
Pool& pool = *new Pool;
#endif

void* map_stack() {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void* start = mmap(nullptr, Stack::BYTES, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (start == MAP_FAILED || mprotect(start, 4096, PROT_NONE) != 0) {
        perror("CUDA emulator: no memory for a stack");
        abort();
    }
    return start;
}

} // namespace

Stack::Stack() {
    std::lock_guard lock(pool.mutex);
    if (pool.stacks.empty()) {
        start_ = map_stack();
    } else {
        start_ = pool.stacks.back();
        pool.stacks.pop_back();
    }
}

Stack::~Stack() {
    std::lock_guard lock(pool.mutex);
    pool.stacks.push_back(start_);
}

Fiber::Fiber(void (*entry)(void*), void* argument)
    : entry_(entry), argument_(argument), identity_(race::create()), caller_identity_(nullptr) {
    getcontext(&own_);
    own_.uc_stack.ss_sp = stack_.start();
    own_.uc_stack.ss_size = Stack::BYTES;
    own_.uc_link = nullptr;
    // makecontext passes ints: the pointer goes in two halves.
    uint64_t self = reinterpret_cast<uint64_t>(this);
    makecontext(&own_, reinterpret_cast<void (*)()>(start), 2, unsigned(self >> 32), unsigned(self));
}

Fiber::~Fiber() { race::destroy(identity_); }

void Fiber::start(unsigned high, unsigned low) {
    auto* self = reinterpret_cast<Fiber*>(uint64_t(high) << 32 | low);
    self->entry_(self->argument_);
    self->suspend();
}

#ifdef UNISONO_RACES
void Fiber::resume() {
    caller_identity_ = race::current();
    race::switch_unordered(identity_);
    swapcontext(&caller_, &own_);
}

void Fiber::suspend() {
    race::switch_unordered(caller_identity_);
    swapcontext(&own_, &caller_);
}
#else
// Contexts are switched with a call of the system, jumps without.
void Fiber::resume() {
    if (_setjmp(to_caller_) == 0) {
        if (started_) {
            _longjmp(to_own_, 1);
        }
        started_ = true;
        setcontext(&own_);
    }
}

void Fiber::suspend() {
    if (_setjmp(to_own_) == 0) {
        _longjmp(to_caller_, 1);
    }
}
#endif

} // namespace emulator
