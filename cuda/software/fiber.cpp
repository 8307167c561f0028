#include "fiber.hpp"

#include "race.hpp"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <vector>

namespace software {

namespace {

// Stacks that nobody uses.
struct Pool {
    std::vector<void*> stacks;

    ~Pool() {
        for (void* stack : stacks) {
            munmap(stack, Stack::BYTES);
        }
    }
};

thread_local Pool pool;

void* map_stack() {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void* start = mmap(nullptr, Stack::BYTES, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (start == MAP_FAILED || mprotect(start, 4096, PROT_NONE) != 0) {
        perror("software device: no memory for a stack");
        abort();
    }
    return start;
}

} // namespace

Stack::Stack() {
    if (pool.stacks.empty()) {
        start_ = map_stack();
    } else {
        start_ = pool.stacks.back();
        pool.stacks.pop_back();
    }
}

Stack::~Stack() { pool.stacks.push_back(start_); }

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

void Fiber::resume() {
    caller_identity_ = race::current();
    race::switch_unordered(identity_);
    swapcontext(&caller_, &own_);
}

void Fiber::suspend() {
    race::switch_unordered(caller_identity_);
    swapcontext(&own_, &caller_);
}

} // namespace software
