// Device memory: ordinary memory that is poisoned when it is allocated and when it is freed, between
// guards that are looked at when it is freed.
#include "error.hpp"
#include "software.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <stdlib.h>
#include <string.h>

namespace {

constexpr uint64_t GUARD = 256;
constexpr unsigned char POISON = 0xa5, GUARD_BYTE = 0x5a;

std::mutex mutex;
std::map<void*, uint64_t> allocations;

bool intact(const unsigned char* guard) {
    return std::all_of(guard, guard + GUARD, [](unsigned char byte) { return byte == GUARD_BYTE; });
}

} // namespace

void* unisono_allocate(uint64_t bytes) {
    uint64_t whole = (bytes + 3 * GUARD - 1) / GUARD * GUARD;
    auto* start = static_cast<unsigned char*>(aligned_alloc(GUARD, whole));
    if (!start) {
        return nullptr;
    }
    memset(start, GUARD_BYTE, whole);
    memset(start + GUARD, POISON, bytes);
    std::lock_guard lock(mutex);
    allocations[start + GUARD] = bytes;
    return start + GUARD;
}

int unisono_free(void* memory) {
    std::lock_guard lock(mutex);
    auto found = allocations.find(memory);
    if (found == allocations.end()) {
        return software::fail("freed what was not allocated");
    }
    auto* inner = static_cast<unsigned char*>(memory);
    bool whole = intact(inner - GUARD) && intact(inner + found->second);
    memset(inner, POISON, found->second);
    free(inner - GUARD);
    allocations.erase(found);
    return whole ? 0 : software::fail("written outside of an allocation");
}
