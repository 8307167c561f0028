// Functions of libcuda for memory: of the device, page-locked, of other processes.
#include "driver.hpp"
#include "launch.hpp"
#include "memory.hpp"
#include "rules.hpp"
#include "emulator.h"

#include <errno.h>
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

// The work does not wait in front of what was enqueued by other streams once it runs.
int copy(uint64_t to, uint64_t from, size_t bytes, Stream* stream) {
    int gpu = stream ? stream->gpu() : 0;
    if (!may_use(gpu, (const void*)to) || !may_use(gpu, (const void*)from)) {
        return INVALID_VALUE;
    }
    return enqueue(stream, [=] { return memmove((void*)to, (const void*)from, bytes), SUCCESS; });
}

// Copies by what the driver finds at both addresses.
int copies(const uint64_t* to, const uint64_t* from, const size_t* bytes, size_t count, Stream* stream) {
    if (!stream || stream->spoil_capture()) {
        return stream ? CAPTURE_UNSUPPORTED : INVALID_HANDLE;
    }
    for (size_t index = 0; index < count; index++) {
        int refused = bytes[index] == 0 ? INVALID_VALUE : copy(to[index], from[index], bytes[index], stream);
        if (refused) {
            return refused;
        }
    }
    return count == 0 ? INVALID_VALUE : SUCCESS;
}

} // namespace

void emulator::wait_if(Rule rule) {
    if (on(rule)) {
        wait_for_running(current_gpu());
    }
}

extern "C" {

int cuMemAlloc_v2(uint64_t* memory, size_t bytes) {
    CALL(CONTEXT | UNSAFE)
    wait_if(Rule::AllocWaits);
    *memory = bytes == 0 ? 0 : (uint64_t)allocate_device(bytes, current_gpu());
    return bytes == 0 ? INVALID_VALUE : *memory ? SUCCESS : system_error();
}

int cuMemFree_v2(uint64_t memory) {
    CALL(CONTEXT | UNSAFE)
    wait_if(Rule::FreeWaits);
    return unisono_free((void*)memory) == 0 ? SUCCESS : INVALID_VALUE;
}

int cuIpcGetMemHandle(MemoryHandle* handle, uint64_t memory) {
    CALL(CONTEXT)
    return emulator::share((void*)memory, handle->shared) ? SUCCESS : INVALID_VALUE;
}

int cuIpcOpenMemHandle_v2(uint64_t* memory, MemoryHandle handle, unsigned) {
    CALL(CONTEXT | UNSAFE)
    *memory = (uint64_t)emulator::open_shared(handle.shared);
    bool gone = errno == EINVAL || errno == ENOENT;
    return *memory ? SUCCESS : gone ? INVALID_VALUE : system_error();
}

int cuIpcCloseMemHandle(uint64_t memory) {
    CALL(CONTEXT | UNSAFE)
    return emulator::close_shared((void*)memory) ? SUCCESS : INVALID_VALUE;
}

// A source that is not page-locked is copied before the call returns.
int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, Stream* stream) {
    CALL(CONTEXT)
    if (page_locked(from)) {
        return copy(to, (uint64_t)from, bytes, stream);
    }
    if (!may_use(stream ? stream->gpu() : 0, (const void*)to)) {
        return INVALID_VALUE;
    }
    wait_if(Rule::PageableCopyWaits);
    auto* start = static_cast<const unsigned char*>(from);
    std::vector<unsigned char> staged(start, start + bytes);
    return enqueue(stream, [to, staged] { return memcpy((void*)to, staged.data(), staged.size()), SUCCESS; });
}

// A copy to memory that is not page-locked is done when the call returns.
int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, Stream* stream) {
    CALL(CONTEXT)
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
    CALL(CONTEXT)
    return copy(to, from, bytes, stream);
}

// Attributes say how sources may be read early, which this function does not do.
int cuMemcpyBatchAsync(uint64_t* to, uint64_t* from, size_t* bytes, size_t count, const void*, size_t*, size_t,
                       size_t* failed, Stream* stream) {
    CALL(CONTEXT)
    int error = copies(to, from, bytes, count, stream);
    if (error && failed) {
        *failed = SIZE_MAX;
    }
    return error;
}

int cuMemcpyBatchAsync_v2(const uint64_t* to, const uint64_t* from, const size_t* bytes, size_t count, const void*,
                          size_t*, size_t, Stream* stream) {
    CALL(CONTEXT)
    return copies(to, from, bytes, count, stream);
}

int cuMemsetD8Async(uint64_t memory, unsigned char byte, size_t bytes, Stream* stream) {
    CALL(CONTEXT)
    if (!may_use(stream ? stream->gpu() : 0, (const void*)memory)) {
        return INVALID_VALUE;
    }
    return enqueue(stream, [=] { return memset((void*)memory, byte, bytes), SUCCESS; });
}

int cuMemGetInfo_v2(size_t* free, size_t* total) {
    CALL(CONTEXT)
    size_t page = size_t(sysconf(_SC_PAGESIZE));
    *free = size_t(sysconf(_SC_AVPHYS_PAGES)) * page;
    return *total = size_t(sysconf(_SC_PHYS_PAGES)) * page, SUCCESS;
}

int cuMemGetAddressRange_v2(uint64_t* start, size_t* bytes, uint64_t inside) {
    CALL(CONTEXT)
    return emulator::range_of((const void*)inside, *start, *bytes) ? SUCCESS : NOT_FOUND;
}

int cuMemHostAlloc(void** memory, size_t bytes, unsigned) {
    CALL(CONTEXT | UNSAFE)
    wait_if(Rule::PinnedAllocWaits);
    *memory = bytes == 0 ? nullptr : allocate_host(bytes);
    return bytes == 0 ? INVALID_VALUE : *memory ? SUCCESS : system_error();
}

int cuMemFreeHost(void* memory) {
    CALL(CONTEXT | UNSAFE)
    wait_if(Rule::PinnedAllocWaits);
    return unisono_free(memory) == 0 ? SUCCESS : INVALID_VALUE;
}

int cuMemHostGetDevicePointer_v2(uint64_t* address, void* memory, unsigned) {
    CALL(CONTEXT)
    return *address = (uint64_t)memory, SUCCESS;
}

} // extern "C"
