// Device memory: shared memory without a name, so that another process can map it. It is filled
// with a pattern when it is allocated, between guards that are checked when it is freed. Small
// allocations share a block, as a driver's do. All blocks of a process are parts of one file,
// because an ordinary user may have only 1,024 descriptors.
#include "memory.hpp"

#include "driver.hpp"
#include "emulator.h"
#include "error.hpp"
#include "rules.hpp"

#include <algorithm>
#include <errno.h>
#include <fcntl.h>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

namespace emulator {

namespace {

constexpr uint64_t GUARD = 256, PAGE = 4096, BLOCK = 2 << 20;
constexpr unsigned char POISON = 0xa5, GUARD_BYTE = 0x5a;
constexpr unsigned ALL_GPUS = ~0u;

// A part of a file of memory, mapped as a whole.
struct Block {
    Block(int file, uint64_t offset, uint64_t bytes, pid_t maker) : offset(offset), bytes(bytes), maker(maker) {
        void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, off_t(offset));
        start = mapped == MAP_FAILED ? nullptr : static_cast<unsigned char*>(mapped);
    }
    Block(const Block&) = delete;
    ~Block();

    // Place in the file of the process that made it.
    uint64_t offset, bytes;
    pid_t maker;
    unsigned char* start;
    // Bytes given out, from the start on. They are not given out again.
    uint64_t used = 0;
};

enum class Kind { Device, Host, Opened, Mapped };

struct Allocation {
    Kind kind;
    uint64_t bytes;
    // GPUs that need no peer access to use it, a bit for each.
    unsigned gpus;
    // Null for memory that is mapped elsewhere.
    std::shared_ptr<Block> block;
};

// Never destroyed, because work may run while the process ends.
std::mutex& mutex = *new std::mutex;
// Allocations by their first byte between the guards.
std::map<unsigned char*, Allocation>& allocations = *new std::map<unsigned char*, Allocation>;
// Blocks in which there may be room for small allocations.
std::weak_ptr<Block>* const open_blocks = new std::weak_ptr<Block>[GPUS_MAX];

// The file of a process, and its length. A forked child makes a file of its own. Offsets are not
// given out again, because a file of memory takes as much as its parts that hold something.
struct OwnFile {
    pid_t process = 0;
    int file = -1;
    uint64_t bytes = 0;
} own;

// Bytes of an allocation with its guards.
uint64_t whole(uint64_t bytes) { return (bytes + 3 * GUARD - 1) / GUARD * GUARD; }

bool intact(const unsigned char* guard) {
    return std::all_of(guard, guard + GUARD, [](unsigned char byte) { return byte == GUARD_BYTE; });
}

// Returns the memory of a part of a block to the system. A forked child leaves it to its parent.
void give_back(const Block& block, uint64_t offset, uint64_t bytes) {
    if (block.maker == own.process && block.maker == getpid()) {
        off_t start = off_t(block.offset + offset);
        fallocate(own.file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, start, off_t(bytes));
    }
}

Block::~Block() {
    if (start) {
        munmap(start, bytes);
        give_back(*this, 0, bytes);
    }
}

// Null if there is no memory; `errno` says why.
std::shared_ptr<Block> new_block(uint64_t bytes) {
    if (own.process != getpid()) {
        int file = memfd_create("unisono device memory", MFD_CLOEXEC);
        if (file < 0) {
            return nullptr;
        }
        own = {getpid(), file, 0};
    }
    if (ftruncate(own.file, off_t(own.bytes + bytes)) != 0) {
        return nullptr;
    }
    auto block = std::make_shared<Block>(own.file, own.bytes, bytes, own.process);
    if (!block->start) {
        return nullptr;
    }
    own.bytes += bytes;
    return block;
}

// The block of an allocation with its guards, which occupies whole pages.
std::shared_ptr<Block> block_for(uint64_t pages, int gpu, bool small) {
    auto block = small ? open_blocks[gpu].lock() : nullptr;
    if (!block || block->bytes - block->used < pages) {
        block = new_block(small ? BLOCK : pages);
    }
    if (small) {
        open_blocks[gpu] = block;
    }
    return block;
}

void* allocate(Kind kind, uint64_t bytes, int gpu) {
    if (bytes > uint64_t(1) << 62) {
        return errno = ENOMEM, nullptr;
    }
    uint64_t pages = (whole(bytes) + PAGE - 1) / PAGE * PAGE;
    std::lock_guard lock(mutex);
    bool small = kind == Kind::Device && pages <= BLOCK && on(Rule::Suballocate);
    auto block = block_for(pages, gpu, small);
    if (!block) {
        return nullptr;
    }
    unsigned char* inner = block->start + block->used + GUARD;
    block->used += pages;
    memset(inner - GUARD, GUARD_BYTE, whole(bytes));
    memset(inner, POISON, bytes);
    allocations[inner] = {kind, bytes, kind == Kind::Device ? 1u << gpu : ALL_GPUS, block};
    return inner;
}

// The allocation that has this address inside; the end if there is none.
std::map<unsigned char*, Allocation>::iterator holding(const void* inside) {
    auto after = allocations.upper_bound((unsigned char*)inside);
    if (after == allocations.begin()) {
        return allocations.end();
    }
    auto found = std::prev(after);
    return (uint64_t)inside - (uint64_t)found->first < found->second.bytes ? found : allocations.end();
}

} // namespace

void* allocate_device(uint64_t bytes, int gpu) { return allocate(Kind::Device, bytes, gpu); }

void* allocate_host(uint64_t bytes) { return allocate(Kind::Host, bytes, 0); }

bool share(void* memory, Shared& shared) {
    std::lock_guard lock(mutex);
    auto found = allocations.find(static_cast<unsigned char*>(memory));
    if (found == allocations.end() || found->second.kind != Kind::Device) {
        return false;
    }
    const Block& block = *found->second.block;
    shared = {uint64_t(getpid()), uint64_t(own.file), block.offset, block.bytes, uint64_t(found->first - block.start),
              found->second.bytes};
    return true;
}

void* open_shared(const Shared& shared) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%llu/fd/%llu", (unsigned long long)shared.process,
             (unsigned long long)shared.file);
    errno = EINVAL;
    int file = shared.process == uint64_t(getpid()) ? -1 : open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) {
        return nullptr;
    }
    auto block = std::make_shared<Block>(file, shared.block_offset, shared.block_bytes, pid_t(shared.process));
    int error = errno;
    close(file);
    if (!block->start) {
        return errno = error, nullptr;
    }
    // The whole block is mapped, whatever part of it was meant.
    bool base = on(Rule::IpcBlockBase);
    unsigned char* memory = block->start + (base ? 0 : shared.offset);
    std::lock_guard lock(mutex);
    allocations[memory] = {Kind::Opened, base ? shared.block_bytes : shared.bytes, ALL_GPUS, block};
    return memory;
}

bool range_of(const void* inside, uint64_t& start, uint64_t& bytes) {
    std::lock_guard lock(mutex);
    auto found = holding(inside);
    if (found == allocations.end()) {
        return false;
    }
    start = (uint64_t)found->first;
    return bytes = found->second.bytes, true;
}

bool page_locked(const void* memory) {
    std::lock_guard lock(mutex);
    return holding(memory) != allocations.end();
}

bool close_shared(void* memory) {
    std::lock_guard lock(mutex);
    auto found = allocations.find(static_cast<unsigned char*>(memory));
    return found != allocations.end() && found->second.kind == Kind::Opened && (allocations.erase(found), true);
}

void enter_mapped(void* memory, uint64_t bytes, unsigned gpus) {
    std::lock_guard lock(mutex);
    allocations[static_cast<unsigned char*>(memory)] = {Kind::Mapped, bytes, gpus, nullptr};
}

void remove_mapped(void* memory) {
    std::lock_guard lock(mutex);
    allocations.erase(static_cast<unsigned char*>(memory));
}

bool may_use(int gpu, const void* memory) {
    std::lock_guard lock(mutex);
    auto found = holding(memory);
    if (!on(Rule::PeerAccess) || found == allocations.end() || found->second.gpus & 1u << gpu) {
        return true;
    }
    for (int owner = 0; owner < GPUS_MAX; owner++) {
        // Access to mapped memory is given by address, and not by peer access.
        if (found->second.kind == Kind::Device && found->second.gpus & 1u << owner && reaches(gpu, owner)) {
            return true;
        }
    }
    return false;
}

bool may_use_pointers(int gpu, const std::vector<unsigned char>& arguments) {
    for (size_t at = 0; at + sizeof(void*) <= arguments.size(); at += sizeof(void*)) {
        const void* word;
        memcpy(&word, arguments.data() + at, sizeof word);
        if (!may_use(gpu, word)) {
            return false;
        }
    }
    return true;
}

} // namespace emulator

using namespace emulator;

void* unisono_allocate(uint64_t bytes) { return allocate_device(bytes, 0); }

int unisono_free(void* memory) {
    std::lock_guard lock(mutex);
    auto found = allocations.find(static_cast<unsigned char*>(memory));
    if (found == allocations.end() || (found->second.kind != Kind::Device && found->second.kind != Kind::Host)) {
        return fail("freed what was not allocated");
    }
    auto [inner, allocation] = *found;
    bool good = intact(inner - GUARD) && intact(inner + allocation.bytes);
    // Other allocations may keep the block: an access to this one ends the process nevertheless.
    uint64_t pages = (whole(allocation.bytes) + PAGE - 1) / PAGE * PAGE;
    mprotect(inner - GUARD, pages, PROT_NONE);
    give_back(*allocation.block, uint64_t(inner - GUARD - allocation.block->start), pages);
    allocations.erase(found);
    return good ? 0 : fail("written outside of an allocation");
}
