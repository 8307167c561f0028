// A CUDA thread: one of several flows of control in a thread of the operating system.
#pragma once

#if defined(UNISONO_RACES) || !defined(__x86_64__)
#define UNISONO_CONTEXTS
#include <setjmp.h>
#include <ucontext.h>
#endif

namespace emulator {

// Memory of a stack. A free one is kept for the next fiber.
class Stack {
public:
    static constexpr unsigned BYTES = 256 << 10;

    Stack();
    ~Stack();
    Stack(const Stack&) = delete;
    void* start() const { return start_; }
    // Ends the process if something was written below the stack.
    void check() const;

private:
    void* start_;
};

class Fiber {
public:
    // `entry(argument)` runs at the first `resume`. After it has ended, the fiber must not be
    // resumed.
    Fiber(void (*entry)(void*), void* argument);
    ~Fiber();
    Fiber(const Fiber&) = delete;

    // Runs it until it suspends.
    void resume();
    // Returns to the caller of `resume`. Called by the fiber itself.
    void suspend();

private:
    Stack stack_;
#ifdef UNISONO_CONTEXTS
    static void start(unsigned high, unsigned low);
    ucontext_t own_, caller_;
    jmp_buf to_own_, to_caller_;
    bool started_ = false;
#else
    static void start();
    // Stack pointers of the flow that does not run, where its registers are.
    void *own_, *caller_;
#endif
    void (*entry_)(void*);
    void* argument_;
    // Identities of both flows for ThreadSanitizer.
    void *identity_, *caller_identity_;
};

} // namespace emulator
