// Memory of a GPU without an address, address ranges without memory, and multicast objects.
#pragma once

#include <memory>
#include <mutex>
#include <stdint.h>
#include <vector>

namespace emulator {

// Memory is allocated, reserved and mapped in multiples of this.
constexpr uint64_t GRANULARITY = 2 << 20;

// Memory that a handle names.
struct Physical {
    Physical(int file, uint64_t bytes, int gpu) : file(file), bytes(bytes), gpu(gpu) {}
    Physical(const Physical&) = delete;
    ~Physical();
    // Maps a part at a place, or anywhere. Null if that fails.
    void* map(void* place, uint64_t bytes, uint64_t offset, int protection) const;

    const int file;
    const uint64_t bytes;
    const int gpu;
};

// Memory of a GPU that stands behind a part of a multicast object.
struct Binding {
    int gpu;
    uint64_t offset, bytes;
    std::shared_ptr<Physical> memory;
    unsigned char* view;
};

struct Multicast {
    const uint64_t bytes;
    const unsigned gpus;
    // GPUs that were added, a bit for each.
    unsigned added = 0;
    std::vector<Binding> bindings;
};

// What a handle names: one of both.
struct Named {
    std::shared_ptr<Physical> memory;
    std::shared_ptr<Multicast> multicast;
};

} // namespace emulator
