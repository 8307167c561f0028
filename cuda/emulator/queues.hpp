// Hardware queues: streams share them, and work waits in them for what was enqueued before it, also
// by other streams.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <stdint.h>

namespace emulator {

class Queue {
public:
    // The queue of the next stream of a GPU.
    static Queue* of_next_stream(int gpu);
    // Sets how many there are for each GPU, from CUDA_DEVICE_MAX_CONNECTIONS.
    static void set_count_from_environment();

    // Appends work, and returns its number.
    uint64_t append();
    // Waits until the work is the first.
    void wait_for(uint64_t number);
    // Lets the next work be the first.
    void remove(uint64_t number);

private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<uint64_t> waiting_;
    uint64_t last_ = 0;
};

// The place in a hardware queue of the work that this thread does. It is left once the work has
// started to run.
class Departure {
public:
    Departure(Queue* queue, uint64_t number) : queue_(number ? queue : nullptr), number_(number) {}
    // Leaves the queue, the first time.
    void leave();
    // Takes it from this thread, and gives it to this thread.
    static Departure* take();
    static void give(Departure* departure);

private:
    std::mutex mutex_;
    Queue* queue_;
    uint64_t number_;
};

} // namespace emulator
