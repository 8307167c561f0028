// Device memory: shared memory without a name, so that another process can map it. It is filled
// with a pattern when it is allocated, between guards that are checked when it is freed.
#include "memory.hpp"

#include "error.hpp"
#include "emulator.h"

#include <algorithm>
#include <fcntl.h>
#include <iterator>
#include <map>
#include <mutex>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

namespace emulator {

namespace {

constexpr uint64_t GUARD = 256;
constexpr unsigned char POISON = 0xa5, GUARD_BYTE = 0x5a;

struct Allocation {
    int file;
    uint64_t bytes;
    // True for memory of another process.
    bool opened;

    // Guards included.
    uint64_t whole() const { return (bytes + 3 * GUARD - 1) / GUARD * GUARD; }
};

std::mutex mutex;
// Allocations by their first byte between the guards.
std::map<unsigned char*, Allocation> allocations;

bool intact(const unsigned char* guard) {
    return std::all_of(guard, guard + GUARD, [](unsigned char byte) { return byte == GUARD_BYTE; });
}

// Maps a file and remembers it; null if that fails, and then the file is closed.
unsigned char* map(Allocation allocation) {
    void* start = mmap(nullptr, allocation.whole(), PROT_READ | PROT_WRITE, MAP_SHARED, allocation.file, 0);
    if (start == MAP_FAILED) {
        close(allocation.file);
        return nullptr;
    }
    auto* inner = static_cast<unsigned char*>(start) + GUARD;
    std::lock_guard lock(mutex);
    allocations[inner] = allocation;
    return inner;
}

// Removes an allocation, and returns whether its guards are intact, or an error if there is no such
// allocation.
int unmap(void* memory, bool opened) {
    std::lock_guard lock(mutex);
    auto found = allocations.find(static_cast<unsigned char*>(memory));
    if (found == allocations.end() || found->second.opened != opened) {
        return fail("freed what was not allocated");
    }
    auto [inner, allocation] = *found;
    bool whole = opened || (intact(inner - GUARD) && intact(inner + allocation.bytes));
    munmap(inner - GUARD, allocation.whole());
    close(allocation.file);
    allocations.erase(found);
    return whole ? 0 : fail("written outside of an allocation");
}

} // namespace

bool share(void* memory, Shared& shared) {
    std::lock_guard lock(mutex);
    auto found = allocations.find(static_cast<unsigned char*>(memory));
    if (found == allocations.end()) {
        return false;
    }
    shared = {uint64_t(getpid()), uint64_t(found->second.file), found->second.bytes};
    return true;
}

void* open_shared(const Shared& shared) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%llu/fd/%llu", (unsigned long long)shared.process,
             (unsigned long long)shared.file);
    int file = shared.process == uint64_t(getpid()) ? -1 : open(path, O_RDWR | O_CLOEXEC);
    return file < 0 ? nullptr : map({file, shared.bytes, true});
}

bool range_of(const void* inside, uint64_t& start, uint64_t& bytes) {
    std::lock_guard lock(mutex);
    auto after = allocations.upper_bound((unsigned char*)inside);
    if (after == allocations.begin()) {
        return false;
    }
    auto [first, allocation] = *std::prev(after);
    start = (uint64_t)first;
    bytes = allocation.bytes;
    return (uint64_t)inside - start < bytes;
}

bool close_shared(void* memory) { return unmap(memory, true) == 0; }

} // namespace emulator

using namespace emulator;

void* unisono_allocate(uint64_t bytes) {
    Allocation allocation = {memfd_create("unisono device memory", MFD_CLOEXEC), bytes, false};
    if (allocation.file < 0 || ftruncate(allocation.file, off_t(allocation.whole())) != 0) {
        close(allocation.file);
        return nullptr;
    }
    unsigned char* inner = map(allocation);
    if (inner) {
        memset(inner - GUARD, GUARD_BYTE, allocation.whole());
        memset(inner, POISON, bytes);
    }
    return inner;
}

int unisono_free(void* memory) { return unmap(memory, false); }
