// Launches: each block is a thread of the operating system. As many run at once as the device has
// room for.
#include "block.hpp"
#include "driver.hpp"
#include "error.hpp"
#include "launch.hpp"
#include "rules.hpp"
#include "emulator.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <string.h>
#include <thread>

namespace emulator {

namespace {

Kernel* kernels = nullptr;

thread_local std::string last_error;

// Room for blocks, of all launches together.
class Residency {
public:
    void set(unsigned blocks) {
        std::lock_guard lock(mutex_);
        limit_ = blocks;
        changed_.notify_all();
    }

    unsigned limit() {
        std::lock_guard lock(mutex_);
        return limit_;
    }

    // Waits for room, and until no more urgent launch waits.
    void enter(unsigned urgency) {
        std::unique_lock lock(mutex_);
        waiting_[urgency]++;
        changed_.wait(lock, [this, urgency] { return resident_ < limit_ && is_first(urgency); });
        waiting_[urgency]--;
        resident_++;
        changed_.notify_all();
    }

    void leave() {
        std::lock_guard lock(mutex_);
        resident_--;
        changed_.notify_all();
    }

private:
    bool is_first(unsigned urgency) const {
        return std::all_of(waiting_ + urgency + 1, waiting_ + PRIORITIES, [](unsigned count) { return count == 0; });
    }

    std::mutex mutex_;
    std::condition_variable changed_;
    unsigned waiting_[PRIORITIES] = {};
    unsigned limit_ = settings().multiprocessors;
    unsigned resident_ = 0;
};

// One for each GPU. Never destroyed, because blocks may run while the process ends.
Residency* const residency = new Residency[GPUS_MAX];
std::atomic<uint64_t> seed{1};

// A launch under way.
class Launch {
public:
    Launch(Grid grid, LaunchPriority turn) : grid_(grid), residency_(residency[turn.gpu]), urgency_(turn.urgency), order_(grid.blocks) {
        grid_.lost = &lost_;
        std::iota(order_.begin(), order_.end(), 0u);
        Random random{grid.seed};
        for (size_t left = order_.size(); left > 1; left--) {
            std::swap(order_[left - 1], order_[random.next() % left]);
        }
    }

    int run() {
        // This thread is one of them.
        std::vector<std::thread> workers(std::min(grid_.blocks, residency_.limit()) - 1);
        for (std::thread& worker : workers) {
            worker = std::thread([this] { work(); });
        }
        work();
        for (std::thread& worker : workers) {
            worker.join();
        }
        return failure_.empty() ? 0 : fail(failure_);
    }

private:
    // Runs blocks while there are any.
    void work() {
        for (unsigned turn; (turn = taken_++) < grid_.blocks && !lost_;) {
            residency_.enter(urgency_);
            std::string failure = Block(grid_, order_[turn]).run();
            residency_.leave();
            if (!failure.empty() && !lost_.exchange(true)) {
                failure_ = failure;
            }
        }
    }

    Grid grid_;
    Residency& residency_;
    unsigned urgency_;
    std::vector<unsigned> order_;
    std::atomic<unsigned> taken_{0};
    std::atomic<bool> lost_{false};
    std::string failure_;
};

} // namespace

int fail(const std::string& message) {
    last_error = message;
    return 1;
}

Kernel::Kernel(const char* name, unsigned bytes, Body body)
    : name(name), bytes(bytes), body(body), next(kernels) {
    kernels = this;
}

const Kernel* find(const char* name) {
    const Kernel* kernel = kernels;
    while (kernel && strcmp(kernel->name, name) != 0) {
        kernel = kernel->next;
    }
    return kernel;
}

unsigned max_resident_blocks() { return residency[0].limit(); }

bool fits(unsigned blocks) { return blocks <= max_resident_blocks(); }

int run(const Kernel& kernel, const void* arguments, unsigned blocks, unsigned threads, LaunchPriority turn) {
    if (blocks == 0 || threads == 0 || threads > 1024) {
        return fail(std::to_string(blocks) + " blocks of " + std::to_string(threads) + " threads");
    }
    Grid grid = {kernel.name, kernel.body, arguments, blocks, threads, seed, nullptr};
    return Launch(grid, turn).run();
}

} // namespace emulator

using namespace emulator;

int unisono_run(const unisono_launch* launch) {
    const Kernel* kernel = find(launch->kernel);
    if (!kernel) {
        return fail(std::string("no kernel ") + launch->kernel);
    }
    if (launch->cooperative && !fits(launch->blocks)) {
        return fail(std::to_string(launch->blocks) + " blocks do not fit: " + std::to_string(max_resident_blocks()) +
                    " can be resident");
    }
    return run(*kernel, launch->arguments, launch->blocks, launch->threads, {0, 0});
}

const char* unisono_error() { return last_error.c_str(); }

const char* unisono_kernel(uint32_t index) {
    const Kernel* kernel = kernels;
    while (kernel && index-- > 0) {
        kernel = kernel->next;
    }
    return kernel ? kernel->name : nullptr;
}

void unisono_set_max_resident_blocks(uint32_t blocks) {
    for (int gpu = 0; gpu < GPUS_MAX; gpu++) {
        residency[gpu].set(blocks);
    }
}

void unisono_set_seed(uint64_t value) { seed = value; }
