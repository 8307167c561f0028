// Launches: each block is a thread of the operating system. As many run at once as the device has
// room for.
#include "block.hpp"
#include "driver.hpp"
#include "error.hpp"
#include "launch.hpp"
#include "queues.hpp"
#include "residency.hpp"
#include "emulator.h"

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <numeric>
#include <string.h>
#include <thread>

namespace emulator {

namespace {

Kernel* kernels = nullptr;

thread_local std::string last_error;

// Launches of which blocks run.
class Running {
public:
    uint64_t begin(int gpu) {
        std::lock_guard lock(mutex_);
        return gpus_[++last_] = gpu, last_;
    }

    void end(uint64_t launch) {
        std::lock_guard lock(mutex_);
        gpus_.erase(launch);
        changed_.notify_all();
    }

    void wait_for(int gpu) {
        std::unique_lock lock(mutex_);
        std::vector<uint64_t> launches;
        for (auto [launch, its_gpu] : gpus_) {
            if (its_gpu == gpu) {
                launches.push_back(launch);
            }
        }
        auto ended = [this](uint64_t launch) { return !gpus_.count(launch); };
        changed_.wait(lock, [&] { return std::all_of(launches.begin(), launches.end(), ended); });
    }

private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::map<uint64_t, int> gpus_;
    uint64_t last_ = 0;
};

// Never destroyed, because blocks may run while the process ends.
Residency* const residency = new Residency[GPUS_MAX];
Running& running = *new Running;
std::atomic<uint64_t> seed{1};

// A launch under way.
class Launch {
public:
    Launch(Grid grid, LaunchPriority turn, unsigned together)
        : grid_(grid), turn_(turn), residency_(residency[turn.gpu]), room_(Residency::ROOM / together),
          order_(grid.blocks), departure_(Departure::take()) {
        grid_.lost = &lost_;
        grid_.error = &error_;
        std::iota(order_.begin(), order_.end(), 0u);
        Random random{grid.seed};
        for (size_t left = order_.size(); left > 1; left--) {
            std::swap(order_[left - 1], order_[random.next() % left]);
        }
    }

    int run() {
        // This thread is one of them.
        std::vector<std::thread> workers(std::min(grid_.blocks, residency_.blocks(room_)) - 1);
        for (std::thread& worker : workers) {
            worker = std::thread([this] { work(); });
        }
        work();
        for (std::thread& worker : workers) {
            worker.join();
        }
        if (number_) {
            running.end(number_);
        }
        return failure_.empty() ? SUCCESS : (fail(failure_), error_.load());
    }

private:
    // Runs blocks while there are any.
    void work() {
        for (unsigned turn; (turn = taken_++) < grid_.blocks && !lost_;) {
            residency_.enter(turn_.urgency, room_);
            entered();
            std::string failure = Block(grid_, order_[turn]).run();
            residency_.leave(room_);
            if (!failure.empty() && !lost_.exchange(true)) {
                failure_ = failure;
            }
        }
    }

    // A launch leaves the hardware queue with its last block.
    void entered() {
        std::lock_guard lock(mutex_);
        if (entered_++ == 0) {
            number_ = running.begin(turn_.gpu);
        }
        if (entered_ == grid_.blocks && departure_) {
            departure_->leave();
        }
    }

    Grid grid_;
    LaunchPriority turn_;
    Residency& residency_;
    uint64_t room_;
    std::vector<unsigned> order_;
    std::atomic<unsigned> taken_{0};
    std::atomic<bool> lost_{false};
    std::atomic<int> error_{LAUNCH_FAILED};
    std::string failure_;
    std::mutex mutex_;
    // Blocks that are resident or have been, and the number under which the launch runs.
    unsigned entered_ = 0;
    uint64_t number_ = 0;
    Departure* departure_;
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

unsigned multiprocessors() { return residency[0].multiprocessors(); }

bool fits(unsigned blocks, unsigned together) { return blocks <= multiprocessors() * together; }

void wait_for_running(int gpu) { running.wait_for(gpu); }

int run(const Kernel& kernel, const void* arguments, unsigned blocks, unsigned threads, LaunchPriority turn) {
    unsigned together = blocks_together(kernel, threads);
    if (blocks == 0 || threads == 0 || threads > 1024 || together == 0) {
        return fail(std::to_string(blocks) + " blocks of " + std::to_string(threads) + " threads"), INVALID_VALUE;
    }
    Grid grid = {kernel.name, kernel.body, arguments, blocks, threads, seed, nullptr, nullptr};
    return Launch(grid, turn, together).run();
}

} // namespace emulator

using namespace emulator;

int unisono_run(const unisono_launch* launch) {
    const Kernel* kernel = find(launch->kernel);
    if (!kernel) {
        return fail(std::string("no kernel ") + launch->kernel);
    }
    unsigned together = blocks_together(*kernel, launch->threads);
    if (launch->cooperative && !fits(launch->blocks, together)) {
        return fail(std::to_string(launch->blocks) + " blocks do not fit: " +
                    std::to_string(multiprocessors() * together) + " can be resident");
    }
    return run(*kernel, launch->arguments, launch->blocks, launch->threads, {0, 0}) != SUCCESS;
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
        residency[gpu].set_multiprocessors(blocks);
    }
}

void unisono_set_seed(uint64_t value) { seed = value; }
