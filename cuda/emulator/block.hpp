// A block of CUDA threads: fibers of one thread of the operating system, in an order that a seed
// chooses.
#pragma once

#include "device.hpp"
#include "fiber.hpp"

#include <atomic>
#include <memory>
#include <string>
#include <vector>

namespace emulator {

// State that all blocks of a launch share.
struct Grid {
    const char* kernel;
    Kernel::Body body;
    const void* arguments;
    unsigned blocks, threads;
    uint64_t seed;
    // Set when a block has failed: the others give up at their next `relax`.
    std::atomic<bool>* lost;
    // Number of the error that the launch ends with if a block fails.
    std::atomic<int>* error;
};

// Numbers that look random (splitmix64).
struct Random {
    uint64_t state;
    uint64_t next();
};

class Block {
public:
    Block(const Grid& grid, unsigned index);

    // Runs all threads to their end; otherwise says why that will never come.
    std::string run();

private:
    enum class State { Ready, AtBarrier, Ended };

    struct Thread {
        Block* block;
        Place place;
        State state;
        // Source position of the barrier that it waits at.
        const char* file;
        int line;
        std::unique_ptr<Fiber> fiber;
    };

    static void enter(void* thread);
    bool wait(bool vote, const char* file, int line);
    void yield();
    // Ends the block because of what its running thread does. Does not return to that thread.
    [[noreturn]] void fault(int error, const std::string& what);
    void run_ready();
    // Releases the threads at the barrier if all are there. Otherwise returns which are missing.
    std::string release();
    std::string describe(const Thread& thread) const;

    const Grid& grid_;
    unsigned index_;
    Random random_;
    std::vector<Thread> threads_;
    // Threads that are neither at a barrier nor at their end.
    std::vector<unsigned> ready_;
    size_t ended_;
    // Set by a thread that did what none may.
    std::string fault_;
    Thread* running_;
    // Barriers passed, the votes of the next and of the last one.
    unsigned generation_;
    bool votes_[2];
    char order_tokens_[2];
    char end_token_;

    friend const Place& place();
    friend bool sync_threads(bool, const char*, int);
    friend void relax();
    friend void misaligned(const void*, unsigned);
    friend void published();
};

} // namespace emulator
