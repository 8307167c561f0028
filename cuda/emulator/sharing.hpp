// Processes that share a GPU: by slices of time, or by the room for blocks.
#pragma once

#include <stdint.h>

namespace emulator {

// Where a block may run: while one exists, the process has the GPU. Without the rule it costs
// nothing.
class Slice {
public:
    // Waits until this process has the GPU.
    explicit Slice(int gpu);
    ~Slice();
    Slice(const Slice&) = delete;

private:
    const int gpu_;
    const bool kept_;
};

// Takes room on a GPU that all processes share, and returns false if there is not so much.
bool take_shared_room(int gpu, uint64_t room, uint64_t limit);
void give_shared_room(int gpu, uint64_t room);

} // namespace emulator
