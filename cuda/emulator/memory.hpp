// Device memory that another process maps.
#pragma once

#include <stdint.h>

namespace emulator {

// Data by which another process finds an allocation.
struct Shared {
    uint64_t process, file, bytes;
};

// False if there is no such allocation.
bool share(void* memory, Shared& shared);
// Null if there is no such allocation any more, or if it is this process's own, as on a GPU.
void* open_shared(const Shared& shared);
// Returns start and length of the allocation that has this address inside. Returns false if there
// is none.
bool range_of(const void* inside, uint64_t& start, uint64_t& bytes);
// False if it was not opened.
bool close_shared(void* memory);

} // namespace emulator
