// Functions of libcuda for virtual memory and multicast objects.
#include "device.hpp"
#include "driver.hpp"
#include "memory.hpp"
#include "rules.hpp"
#include "virtual_memory.hpp"

#include <errno.h>
#include <fcntl.h>
#include <iterator>
#include <map>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

using namespace emulator;

namespace {

// A part of a reserved range with memory behind it.
struct Mapping {
    uint64_t bytes, offset;
    Named what;
    int protection;
};

std::mutex& mutex = *new std::mutex;
std::map<uint64_t, Named>& handles = *new std::map<uint64_t, Named>;
// Bytes of reserved ranges, and mappings, by their start.
std::map<uint64_t, uint64_t>& ranges = *new std::map<uint64_t, uint64_t>;
std::map<uint64_t, Mapping>& mappings = *new std::map<uint64_t, Mapping>;
uint64_t last_handle = 0;

// `CUmemLocation` and `CUmemAllocationProp`.
struct Location {
    int type, id;
};
struct Properties {
    int type, handle_types;
    Location location;
    void* unused[2];
};
constexpr int PINNED = 1, DEVICE_LOCATION = 1, FILE_DESCRIPTOR = 1;

// `CUmemAccessDesc`.
struct Access {
    Location location;
    int flags;
};
constexpr int READ = 1, READ_WRITE = 3;

// `CUmulticastObjectProp`.
struct MulticastProperties {
    unsigned gpus;
    size_t bytes;
    uint64_t handle_types, flags;
};

bool is_whole(uint64_t bytes) { return bytes > 0 && bytes % GRANULARITY == 0; }

uint64_t name(Named what) {
    handles[++last_handle] = std::move(what);
    return last_handle;
}

// Null if the handle names nothing.
const Named* find_handle(uint64_t handle) {
    auto found = handles.find(handle);
    return found == handles.end() ? nullptr : &found->second;
}

std::shared_ptr<Multicast> find_multicast(uint64_t handle) {
    const Named* found = find_handle(handle);
    return found ? found->multicast : nullptr;
}

// Returns true if a range is reserved and nothing is mapped there.
bool is_free(uint64_t start, uint64_t bytes) {
    auto range = ranges.upper_bound(start);
    bool reserved = range != ranges.begin() && start + bytes <= std::prev(range)->first + std::prev(range)->second;
    auto next = mappings.upper_bound(start);
    bool before = next != mappings.begin() && std::prev(next)->first + std::prev(next)->second.bytes > start;
    return reserved && !before && (next == mappings.end() || next->first >= start + bytes);
}

int bind(uint64_t multicast, uint64_t offset, const std::shared_ptr<Physical>& memory, uint64_t memory_offset,
         uint64_t bytes) {
    auto object = find_multicast(multicast);
    if (!object || !memory || !is_whole(bytes) || offset % GRANULARITY || memory_offset % GRANULARITY) {
        return INVALID_VALUE;
    }
    // All GPUs are added first, and memory is that of one of them.
    if (unsigned(__builtin_popcount(object->added)) != object->gpus || !(object->added & 1u << memory->gpu) ||
        offset + bytes > object->bytes || memory_offset + bytes > memory->bytes) {
        return INVALID_VALUE;
    }
    for (const Binding& bound : object->bindings) {
        if (bound.gpu == memory->gpu && bound.offset < offset + bytes && offset < bound.offset + bound.bytes) {
            return INVALID_VALUE;
        }
    }
    void* view = memory->map(nullptr, bytes, memory_offset, PROT_READ | PROT_WRITE);
    if (!view) {
        return system_error();
    }
    object->bindings.push_back({memory->gpu, offset, bytes, memory, static_cast<unsigned char*>(view)});
    return SUCCESS;
}

} // namespace

Physical::~Physical() { close(file); }

void* Physical::map(void* place, uint64_t bytes, uint64_t offset, int protection) const {
    int flags = MAP_SHARED | (place ? MAP_FIXED : 0);
    void* mapped = mmap(place, bytes, protection, flags, file, off_t(offset));
    return mapped == MAP_FAILED ? nullptr : mapped;
}

unsigned emulator::multicast_copies(const void* address, void* (&copies)[8]) {
    std::lock_guard lock(mutex);
    auto next = mappings.upper_bound((uint64_t)address);
    if (next == mappings.begin()) {
        return 0;
    }
    const auto& [start, mapping] = *std::prev(next);
    uint64_t within = (uint64_t)address - start;
    unsigned count = 0;
    if (within >= mapping.bytes || !mapping.what.multicast) {
        return 0;
    }
    for (const Binding& bound : mapping.what.multicast->bindings) {
        uint64_t at = mapping.offset + within - bound.offset;
        if (mapping.offset + within >= bound.offset && at < bound.bytes && count < 8) {
            copies[count++] = bound.view + at;
        }
    }
    return count;
}

extern "C" {

int cuMemGetAllocationGranularity(size_t* bytes, const Properties*, int) {
    CALL(CONTEXT)
    return *bytes = GRANULARITY, SUCCESS;
}

int cuMemCreate(uint64_t* handle, size_t bytes, const Properties* properties, uint64_t) {
    CALL(CONTEXT | UNSAFE)
    bool device = properties->type == PINNED && properties->location.type == DEVICE_LOCATION;
    if (!device || !is_whole(bytes) || properties->location.id < 0 || properties->location.id >= gpu_count()) {
        return INVALID_VALUE;
    }
    if (properties->handle_types & ~FILE_DESCRIPTOR) {
        return NOT_SUPPORTED;
    }
    wait_if(Rule::AllocWaits);
    int file = memfd_create("unisono memory handle", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, off_t(bytes)) != 0) {
        int error = system_error();
        return close(file), error;
    }
    std::lock_guard lock(mutex);
    return *handle = name({std::make_shared<Physical>(file, bytes, properties->location.id), nullptr}), SUCCESS;
}

// Mappings keep the memory.
int cuMemRelease(uint64_t handle) {
    CALL(CONTEXT | UNSAFE)
    std::lock_guard lock(mutex);
    return handles.erase(handle) ? SUCCESS : INVALID_VALUE;
}

int cuMemRetainAllocationHandle(uint64_t* handle, void* address) {
    CALL(CONTEXT)
    std::lock_guard lock(mutex);
    auto next = mappings.upper_bound((uint64_t)address);
    if (next == mappings.begin() || (uint64_t)address - std::prev(next)->first >= std::prev(next)->second.bytes) {
        return INVALID_VALUE;
    }
    return *handle = name(std::prev(next)->second.what), SUCCESS;
}

int cuMemAddressReserve(uint64_t* start, size_t bytes, size_t alignment, uint64_t, uint64_t) {
    CALL(CONTEXT)
    if (!is_whole(bytes) || alignment & (alignment - 1)) {
        return INVALID_VALUE;
    }
    // More than is needed, of which the ends are given back.
    uint64_t align = alignment > GRANULARITY ? alignment : GRANULARITY;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void* mapped = mmap(nullptr, bytes + align, PROT_NONE, flags, -1, 0);
    if (mapped == MAP_FAILED) {
        return system_error();
    }
    uint64_t first = (uint64_t)mapped, aligned = (first + align - 1) / align * align;
    if (aligned > first) {
        munmap(mapped, aligned - first);
    }
    munmap((void*)(aligned + bytes), first + align - aligned);
    std::lock_guard lock(mutex);
    ranges[aligned] = bytes;
    return *start = aligned, SUCCESS;
}

int cuMemAddressFree(uint64_t start, size_t bytes) {
    CALL(CONTEXT)
    std::lock_guard lock(mutex);
    auto found = ranges.find(start);
    if (found == ranges.end() || found->second != bytes || !is_free(start, bytes)) {
        return INVALID_VALUE;
    }
    ranges.erase(found);
    return munmap((void*)start, bytes), SUCCESS;
}

int cuMemMap(uint64_t start, size_t bytes, size_t offset, uint64_t handle, uint64_t) {
    CALL(CONTEXT)
    std::lock_guard lock(mutex);
    const Named* what = find_handle(handle);
    if (!what || !is_whole(bytes) || start % GRANULARITY || offset % GRANULARITY || !is_free(start, bytes)) {
        return INVALID_VALUE;
    }
    uint64_t whole = what->memory ? what->memory->bytes : what->multicast->bytes;
    if (offset + bytes > whole) {
        return INVALID_VALUE;
    }
    if (what->memory && !what->memory->map((void*)start, bytes, offset, PROT_NONE)) {
        return system_error();
    }
    mappings[start] = {bytes, offset, *what, PROT_NONE};
    return SUCCESS;
}

// Kernels and the host have one address space here, so memory is accessible to the host too.
// Multicast addresses stay inaccessible: only multimem operations have a meaning there.
int cuMemSetAccess(uint64_t start, size_t bytes, const Access* accesses, size_t count) {
    CALL(CONTEXT)
    std::lock_guard lock(mutex);
    unsigned gpus = 0;
    int protection = PROT_NONE;
    for (size_t index = 0; index < count; index++) {
        const Access& access = accesses[index];
        if (access.location.type != DEVICE_LOCATION || access.location.id < 0 || access.location.id >= gpu_count()) {
            return INVALID_VALUE;
        }
        gpus |= access.flags ? 1u << access.location.id : 0;
        protection |= access.flags == READ_WRITE ? PROT_READ | PROT_WRITE : access.flags == READ ? PROT_READ : 0;
    }
    uint64_t end = start + bytes;
    for (auto at = mappings.find(start); start < end; at = mappings.find(start)) {
        if (at == mappings.end() || start + at->second.bytes > end) {
            return INVALID_VALUE;
        }
        Mapping& mapping = at->second;
        if (mapping.what.memory) {
            mprotect((void*)start, mapping.bytes, mapping.protection = protection);
            enter_mapped((void*)start, mapping.bytes, gpus);
        }
        start += mapping.bytes;
    }
    return SUCCESS;
}

int cuMemUnmap(uint64_t start, size_t bytes) {
    CALL(CONTEXT | UNSAFE)
    wait_if(Rule::FreeWaits);
    std::lock_guard lock(mutex);
    uint64_t end = start + bytes;
    while (start < end) {
        auto found = mappings.find(start);
        if (found == mappings.end() || start + found->second.bytes > end) {
            return INVALID_VALUE;
        }
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
        mmap((void*)start, found->second.bytes, PROT_NONE, flags, -1, 0);
        remove_mapped((void*)start);
        start += found->second.bytes;
        mappings.erase(found);
    }
    return SUCCESS;
}

// Multicast objects have no memory of their own that a file descriptor could name.
int cuMemExportToShareableHandle(void* shareable, uint64_t handle, int type, uint64_t) {
    CALL(CONTEXT)
    std::lock_guard lock(mutex);
    const Named* what = find_handle(handle);
    if (!what || type != FILE_DESCRIPTOR) {
        return INVALID_VALUE;
    }
    if (!what->memory) {
        return NOT_SUPPORTED;
    }
    int file = fcntl(what->memory->file, F_DUPFD_CLOEXEC, 0);
    return file < 0 ? system_error() : (*static_cast<int*>(shareable) = file, SUCCESS);
}

int cuMemImportFromShareableHandle(uint64_t* handle, void* shareable, int type) {
    CALL(CONTEXT)
    struct stat status;
    int file = fcntl(int((intptr_t)shareable), F_DUPFD_CLOEXEC, 0);
    if (file < 0 && errno != EBADF) {
        return system_error();
    }
    if (type != FILE_DESCRIPTOR || file < 0 || fstat(file, &status) != 0 || !is_whole(uint64_t(status.st_size))) {
        return close(file), INVALID_VALUE;
    }
    std::lock_guard lock(mutex);
    auto memory = std::make_shared<Physical>(file, uint64_t(status.st_size), current_gpu());
    return *handle = name({memory, nullptr}), SUCCESS;
}

int cuMulticastGetGranularity(size_t* bytes, const MulticastProperties*, int) {
    CALL(CONTEXT)
    return on(Rule::Multicast) ? (*bytes = GRANULARITY, SUCCESS) : NOT_SUPPORTED;
}

int cuMulticastCreate(uint64_t* handle, const MulticastProperties* properties) {
    CALL(CONTEXT)
    if (!on(Rule::Multicast)) {
        return NOT_SUPPORTED;
    }
    if (!is_whole(properties->bytes) || properties->gpus < 2 || int(properties->gpus) > gpu_count()) {
        return INVALID_VALUE;
    }
    std::lock_guard lock(mutex);
    auto object = std::make_shared<Multicast>(Multicast{properties->bytes, properties->gpus, 0, {}});
    return *handle = name({nullptr, object}), SUCCESS;
}

int cuMulticastAddDevice(uint64_t handle, int gpu) {
    CALL(CONTEXT)
    std::lock_guard lock(mutex);
    auto object = find_multicast(handle);
    bool room = object && unsigned(__builtin_popcount(object->added)) < object->gpus;
    if (!room || gpu < 0 || gpu >= gpu_count() || object->added & 1u << gpu) {
        return INVALID_VALUE;
    }
    return object->added |= 1u << gpu, SUCCESS;
}

int cuMulticastBindMem(uint64_t multicast, size_t offset, uint64_t memory, size_t memory_offset, size_t bytes,
                       uint64_t) {
    CALL(CONTEXT)
    std::lock_guard lock(mutex);
    const Named* what = find_handle(memory);
    return bind(multicast, offset, what ? what->memory : nullptr, memory_offset, bytes);
}

int cuMulticastBindAddr(uint64_t multicast, size_t offset, uint64_t address, size_t bytes, uint64_t) {
    CALL(CONTEXT)
    std::lock_guard lock(mutex);
    auto next = mappings.upper_bound(address);
    if (next == mappings.begin() || address - std::prev(next)->first + bytes > std::prev(next)->second.bytes) {
        return INVALID_VALUE;
    }
    const auto& [start, mapping] = *std::prev(next);
    return bind(multicast, offset, mapping.what.memory, mapping.offset + address - start, bytes);
}

int cuMulticastUnbind(uint64_t multicast, int gpu, size_t offset, size_t bytes) {
    CALL(CONTEXT)
    std::lock_guard lock(mutex);
    auto object = find_multicast(multicast);
    if (!object) {
        return INVALID_VALUE;
    }
    auto& bindings = object->bindings;
    for (auto bound = bindings.begin(); bound != bindings.end(); bound++) {
        if (bound->gpu == gpu && bound->offset == offset && bound->bytes == bytes) {
            munmap(bound->view, bound->bytes);
            return bindings.erase(bound), SUCCESS;
        }
    }
    return INVALID_VALUE;
}

} // extern "C"
