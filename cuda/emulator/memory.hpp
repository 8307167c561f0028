// Device memory that another process maps, and to whom memory belongs.
#pragma once

#include <stdint.h>
#include <vector>

namespace emulator {

// Data by which another process finds an allocation: its place in a block of memory, which a file
// descriptor of the owner names.
struct Shared {
    uint64_t process, file, block_offset, block_bytes, offset, bytes;
};

// Memory of a GPU, or page-locked memory; null if the system gives none, and `errno` says why.
void* allocate_device(uint64_t bytes, int gpu);
void* allocate_host(uint64_t bytes);

// False if there is no such allocation.
bool share(void* memory, Shared& shared);
// Null if there is no such allocation any more, or if it is this process's own, as on a GPU;
// `errno` says why.
void* open_shared(const Shared& shared);
// Returns start and length of the allocation that has this address inside. Returns false if there
// is none.
bool range_of(const void* inside, uint64_t& start, uint64_t& bytes);
// Returns true for memory that devices copy from and to without staging.
bool page_locked(const void* memory);
// False if it was not opened.
bool close_shared(void* memory);

// Enters memory that is mapped elsewhere, which these GPUs may use (a bit for each), and removes it.
void enter_mapped(void* memory, uint64_t bytes, unsigned gpus);
void remove_mapped(void* memory);

// Returns true if a GPU may use memory: its own, that of a GPU that it reaches, or the host's.
bool may_use(int gpu, const void* memory);
// The same for all words of a launch's arguments that are addresses of memory.
bool may_use_pointers(int gpu, const std::vector<unsigned char>& arguments);

} // namespace emulator
