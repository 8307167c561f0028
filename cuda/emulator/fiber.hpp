// One flow of control of several in an operating system's thread: a CUDA thread.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

namespace emulator {

// Memory for a stack; kept for the next when nobody uses it.
class Stack {
public:
    static constexpr unsigned BYTES = 256 << 10;

    Stack();
    ~Stack();
    Stack(const Stack&) = delete;
    void* start() const { return start_; }

private:
    void* start_;
};

class Fiber {
public:
    // `entry(argument)` runs at the first `resume`; when it has ended, nobody resumes it again.
    Fiber(void (*entry)(void*), void* argument);
    ~Fiber();
    Fiber(const Fiber&) = delete;

    // Runs it until it suspends.
    void resume();
    // Back to who resumed it; called by itself.
    void suspend();

private:
    static void start(unsigned high, unsigned low);

    Stack stack_;
    ucontext_t own_, caller_;
    jmp_buf to_own_, to_caller_;
    bool started_ = false;
    void (*entry_)(void*);
    void* argument_;
    // What ThreadSanitizer knows both flows as.
    void *identity_, *caller_identity_;
};

} // namespace emulator
