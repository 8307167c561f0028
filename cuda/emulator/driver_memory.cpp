// Functions of libcuda for memory: of the device, page-locked, of other processes.
#include "driver.hpp"
#include "memory.hpp"
#include "rules.hpp"
#include "emulator.h"

#include <string.h>
#include <unistd.h>
#include <vector>

using namespace emulator;

namespace {

// `CUipcMemHandle`.
struct MemoryHandle {
    Shared shared;
    char unused[64 - sizeof(Shared)];
};

bool page_locked(const void* memory) {
    uint64_t start, bytes;
    return range_of(memory, start, bytes);
}

// Waits for running kernels of the current GPU, if this rule is kept.
void wait_if(Rule rule) {
    if (on(rule)) {
        Stream::wait_for_running(current_gpu());
    }
}

int copy(uint64_t to, uint64_t from, size_t bytes, Stream* stream) {
    return enqueue(stream, [=] { return memmove((void*)to, (const void*)from, bytes), SUCCESS; });
}

} // namespace

extern "C" {

int cuMemAlloc_v2(uint64_t* memory, size_t bytes) {
    if (!may_allocate()) {
        return CAPTURE_UNSUPPORTED;
    }
    wait_if(Rule::AllocWaits);
    *memory = bytes == 0 ? 0 : (uint64_t)unisono_allocate(bytes);
    return bytes == 0 ? INVALID_VALUE : *memory ? SUCCESS : OUT_OF_MEMORY;
}

int cuMemFree_v2(uint64_t memory) {
    wait_if(Rule::FreeWaits);
    return unisono_free((void*)memory) == 0 ? SUCCESS : INVALID_VALUE;
}

int cuIpcGetMemHandle(MemoryHandle* handle, uint64_t memory) {
    return emulator::share((void*)memory, handle->shared) ? SUCCESS : INVALID_VALUE;
}

int cuIpcOpenMemHandle_v2(uint64_t* memory, MemoryHandle handle, unsigned) {
    *memory = (uint64_t)emulator::open_shared(handle.shared);
    return *memory ? SUCCESS : INVALID_VALUE;
}

int cuIpcCloseMemHandle(uint64_t memory) {
    return emulator::close_shared((void*)memory) ? SUCCESS : INVALID_VALUE;
}

// A source that is not page-locked is copied before the call returns.
int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, Stream* stream) {
    if (page_locked(from)) {
        return copy(to, (uint64_t)from, bytes, stream);
    }
    wait_if(Rule::PageableCopyWaits);
    auto* start = static_cast<const unsigned char*>(from);
    std::vector<unsigned char> staged(start, start + bytes);
    return enqueue(stream, [to, staged] { return memcpy((void*)to, staged.data(), staged.size()), SUCCESS; });
}

// A copy to memory that is not page-locked is done when the call returns.
int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, Stream* stream) {
    if (page_locked(to)) {
        return copy((uint64_t)to, from, bytes, stream);
    }
    if (!stream || stream->spoil_capture()) {
        return stream ? CAPTURE_UNSUPPORTED : INVALID_HANDLE;
    }
    wait_if(Rule::PageableCopyWaits);
    int failed = copy((uint64_t)to, from, bytes, stream);
    return failed ? failed : stream->synchronize();
}

int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, Stream* stream) {
    return copy(to, from, bytes, stream);
}

int cuMemsetD8Async(uint64_t memory, unsigned char byte, size_t bytes, Stream* stream) {
    return enqueue(stream, [=] { return memset((void*)memory, byte, bytes), SUCCESS; });
}

int cuMemGetInfo_v2(size_t* free, size_t* total) {
    size_t page = size_t(sysconf(_SC_PAGESIZE));
    *free = size_t(sysconf(_SC_AVPHYS_PAGES)) * page;
    return *total = size_t(sysconf(_SC_PHYS_PAGES)) * page, SUCCESS;
}

int cuMemGetAddressRange_v2(uint64_t* start, size_t* bytes, uint64_t inside) {
    return emulator::range_of((const void*)inside, *start, *bytes) ? SUCCESS : NOT_FOUND;
}

int cuMemHostAlloc(void** memory, size_t bytes, unsigned) {
    if (!may_allocate()) {
        return CAPTURE_UNSUPPORTED;
    }
    wait_if(Rule::PinnedAllocWaits);
    *memory = bytes == 0 ? nullptr : unisono_allocate(bytes);
    return bytes == 0 ? INVALID_VALUE : *memory ? SUCCESS : OUT_OF_MEMORY;
}

int cuMemFreeHost(void* memory) {
    wait_if(Rule::PinnedAllocWaits);
    return unisono_free(memory) == 0 ? SUCCESS : INVALID_VALUE;
}

int cuMemHostGetDevicePointer_v2(uint64_t* address, void* memory, unsigned) {
    return *address = (uint64_t)memory, SUCCESS;
}

} // extern "C"
