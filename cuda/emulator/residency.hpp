// Room for blocks on a GPU, of all launches together.
#pragma once

#include "launch.hpp"
#include "rules.hpp"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <stdint.h>

namespace emulator {

class Residency {
public:
    // Room of a multiprocessor. It is divided by the number of blocks that fit.
    static constexpr uint64_t ROOM = 65536;

    void set_multiprocessors(unsigned count) {
        std::lock_guard lock(mutex_);
        limit_ = count * ROOM;
        changed_.notify_all();
    }

    unsigned multiprocessors() { return unsigned(limit() / ROOM); }

    // Blocks of this size for which there is room.
    unsigned blocks(uint64_t room) { return unsigned(limit() / room); }

    // Waits for room, and until no more urgent launch waits.
    void enter(unsigned urgency, uint64_t room) {
        std::unique_lock lock(mutex_);
        waiting_[urgency]++;
        changed_.wait(lock, [&] { return resident_ + room <= limit_ && is_first(urgency); });
        waiting_[urgency]--;
        resident_ += room;
        changed_.notify_all();
    }

    void leave(uint64_t room) {
        std::lock_guard lock(mutex_);
        resident_ -= room;
        changed_.notify_all();
    }

private:
    uint64_t limit() {
        std::lock_guard lock(mutex_);
        return limit_;
    }

    bool is_first(unsigned urgency) const {
        return std::all_of(waiting_ + urgency + 1, waiting_ + PRIORITIES, [](unsigned count) { return count == 0; });
    }

    std::mutex mutex_;
    std::condition_variable changed_;
    unsigned waiting_[PRIORITIES] = {};
    uint64_t limit_ = settings().multiprocessors * ROOM;
    uint64_t resident_ = 0;
};

} // namespace emulator
