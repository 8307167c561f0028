// Jumps go from stack to stack, which checks of the C library take for a mistake.
#undef _FORTIFY_SOURCE

#include "fiber.hpp"

#include "race.hpp"

#include <algorithm>
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

constexpr unsigned STACKS_TOGETHER = 64;
// Ends of stacks that lie beside others hold this, because a system has few protected pages.
constexpr uint64_t LIMIT_MARK = 0x6b636174736c6c75;

// Adds stacks to a pool.
void map_stacks(std::vector<void*>& stacks) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void* start = mmap(nullptr, STACKS_TOGETHER * Stack::BYTES, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (start == MAP_FAILED) {
        perror("CUDA emulator: no memory for stacks");
        abort();
    }
    for (unsigned index = 0; index < STACKS_TOGETHER; index++) {
        auto* stack = static_cast<unsigned char*>(start) + size_t(index) * Stack::BYTES;
        *(uint64_t*)stack = LIMIT_MARK;
        stacks.push_back(stack);
    }
}

} // namespace

Stack::Stack() {
    std::lock_guard lock(pool.mutex);
    if (pool.stacks.empty()) {
        map_stacks(pool.stacks);
    }
    start_ = pool.stacks.back();
    pool.stacks.pop_back();
}

Stack::~Stack() {
    check();
    std::lock_guard lock(pool.mutex);
    pool.stacks.push_back(start_);
}

void Stack::check() const {
    if (*static_cast<uint64_t*>(start_) != LIMIT_MARK) {
        fprintf(stderr, "CUDA emulator: a thread needs more than %u bytes of stack\n", BYTES);
        abort();
    }
}

#ifdef UNISONO_CONTEXTS
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
#else
// Saves the registers that functions keep on this stack, and continues with those on the other.
asm(R"(
.text
.p2align 4
.type unisono_switch_stacks, @function
unisono_switch_stacks:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size unisono_switch_stacks, .-unisono_switch_stacks
)");
extern "C" void unisono_switch_stacks(void** here, void* there);

namespace {

thread_local Fiber* starting = nullptr;

} // namespace

Fiber::Fiber(void (*entry)(void*), void* argument)
    : caller_(nullptr), entry_(entry), argument_(argument), identity_(race::create()), caller_identity_(nullptr) {
    // As if `start` had been called and had called: its place to return to, and six registers.
    auto* top = reinterpret_cast<uint64_t*>(static_cast<unsigned char*>(stack_.start()) + Stack::BYTES);
    uint64_t frame[8] = {0, 0, 0, 0, 0, 0, reinterpret_cast<uint64_t>(&Fiber::start), 0};
    own_ = std::copy(frame, frame + 8, top - 8) - 8;
}

Fiber::~Fiber() {}

void Fiber::start() {
    Fiber* self = starting;
    self->entry_(self->argument_);
    self->suspend();
}

void Fiber::resume() {
    starting = this;
    unisono_switch_stacks(&caller_, own_);
}

void Fiber::suspend() { unisono_switch_stacks(&own_, caller_); }
#endif

#if defined(UNISONO_RACES)
void Fiber::resume() {
    caller_identity_ = race::current();
    race::switch_unordered(identity_);
    swapcontext(&caller_, &own_);
}

void Fiber::suspend() {
    race::switch_unordered(caller_identity_);
    swapcontext(&own_, &caller_);
}
#elif defined(UNISONO_CONTEXTS)
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
