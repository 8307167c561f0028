#include "queues.hpp"

#include "driver.hpp"

#include <algorithm>
#include <atomic>
#include <stdlib.h>
#include <utility>

namespace emulator {

namespace {

constexpr unsigned QUEUES_MAX = 32, QUEUES = 8;

// Never destroyed, because streams may run while the process ends.
Queue* queues_of(int gpu) {
    static Queue* const queues = new Queue[GPUS_MAX * QUEUES_MAX];
    return queues + gpu * QUEUES_MAX;
}

std::atomic<unsigned> queue_count{QUEUES};
std::atomic<unsigned> streams[GPUS_MAX];

thread_local Departure* current = nullptr;

} // namespace

Queue* Queue::of_next_stream(int gpu) { return queues_of(gpu) + streams[gpu]++ % queue_count; }

void Queue::set_count_from_environment() {
    const char* text = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    int count = text ? atoi(text) : 0;
    queue_count = count > 0 ? std::min(unsigned(count), QUEUES_MAX) : QUEUES;
}

uint64_t Queue::append() {
    std::lock_guard lock(mutex_);
    waiting_.push_back(++last_);
    return last_;
}

void Queue::wait_for(uint64_t number) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return waiting_.front() == number; });
}

void Queue::remove(uint64_t number) {
    std::lock_guard lock(mutex_);
    waiting_.erase(std::find(waiting_.begin(), waiting_.end(), number));
    changed_.notify_all();
}

void Departure::leave() {
    std::lock_guard lock(mutex_);
    if (Queue* queue = std::exchange(queue_, nullptr)) {
        queue->remove(number_);
    }
}

Departure* Departure::take() { return std::exchange(current, nullptr); }

void Departure::give(Departure* departure) { current = departure; }

} // namespace emulator
