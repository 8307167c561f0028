// Functions of libcuda by their names there, over the software device: one device, one context, no default
// stream. A module is PTX text; its kernels are those of the same names that are linked with the device.
#include "launch.hpp"
#include "memory.hpp"
#include "software.h"
#include "stream.hpp"

#include <set>
#include <stdio.h>
#include <string.h>
#include <string>
#include <vector>

using software::Event;
using software::Kernel;
using software::Stream;

namespace {

// Numbers of `CUresult`.
enum Result : int {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    LAUNCH_FAILED = 719,
    COOPERATIVE_LAUNCH_TOO_LARGE = 720,
    NOT_SUPPORTED = 801,
};

struct Module {
    std::set<std::string> kernels;
};

// `CUipcMemHandle`.
struct MemoryHandle {
    software::Shared shared;
    char unused[64 - sizeof(software::Shared)];
};

// The only context.
char context;

int enqueue(Stream* stream, Stream::Work work) {
    if (!stream) {
        return INVALID_HANDLE;
    }
    stream->push(std::move(work));
    return SUCCESS;
}

int copy(uint64_t to, uint64_t from, size_t bytes, Stream* stream) {
    auto work = [=] { return memmove((void*)to, (const void*)from, bytes), SUCCESS; };
    return enqueue(stream, work);
}

// Runs a launch from a copy of its arguments; what goes wrong is said at once, as only a number reaches the caller.
int launch(const Kernel* kernel, const unsigned (&shape)[6], unsigned shared, Stream* stream, void** parameters) {
    if (!kernel || !parameters) {
        return INVALID_VALUE;
    }
    if (shape[1] != 1 || shape[2] != 1 || shape[4] != 1 || shape[5] != 1 || shared != 0) {
        return NOT_SUPPORTED;
    }
    auto* start = static_cast<const unsigned char*>(parameters[0]);
    std::vector<unsigned char> arguments(start, start + kernel->bytes);
    unsigned blocks = shape[0], threads = shape[3];
    return enqueue(stream, [=]() -> int {
        if (software::run(*kernel, arguments.data(), blocks, threads) == 0) {
            return SUCCESS;
        }
        fprintf(stderr, "software device: %s\n", unisono_error());
        return LAUNCH_FAILED;
    });
}

} // namespace

extern "C" {

int cuInit(unsigned flags) { return flags == 0 ? SUCCESS : INVALID_VALUE; }

int cuDriverGetVersion(int* version) { return *version = 12000, SUCCESS; }

int cuDeviceGetCount(int* count) { return *count = 1, SUCCESS; }

int cuDeviceGet(int* device, int ordinal) {
    *device = 0;
    return ordinal == 0 ? SUCCESS : INVALID_DEVICE;
}

int cuDeviceGetName(char* name, int bytes, int) {
    return snprintf(name, size_t(bytes), "unisono software device"), SUCCESS;
}

int cuDevicePrimaryCtxRetain(void** retained, int) { return *retained = &context, SUCCESS; }

int cuDevicePrimaryCtxRelease_v2(int) { return SUCCESS; }

int cuCtxSetCurrent(void* wanted) { return wanted == &context || !wanted ? SUCCESS : INVALID_VALUE; }

int cuMemAlloc_v2(uint64_t* memory, size_t bytes) {
    *memory = bytes == 0 ? 0 : (uint64_t)unisono_allocate(bytes);
    return bytes == 0 ? INVALID_VALUE : *memory ? SUCCESS : OUT_OF_MEMORY;
}

int cuMemFree_v2(uint64_t memory) { return unisono_free((void*)memory) == 0 ? SUCCESS : INVALID_VALUE; }

int cuIpcGetMemHandle(MemoryHandle* handle, uint64_t memory) {
    return software::share((void*)memory, handle->shared) ? SUCCESS : INVALID_VALUE;
}

int cuIpcOpenMemHandle_v2(uint64_t* memory, MemoryHandle handle, unsigned) {
    *memory = (uint64_t)software::open_shared(handle.shared);
    return *memory ? SUCCESS : INVALID_VALUE;
}

int cuIpcCloseMemHandle(uint64_t memory) {
    return software::close_shared((void*)memory) ? SUCCESS : INVALID_VALUE;
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, Stream* stream) {
    return copy(to, (uint64_t)from, bytes, stream);
}

int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, Stream* stream) {
    return copy((uint64_t)to, from, bytes, stream);
}

int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, Stream* stream) {
    return copy(to, from, bytes, stream);
}

int cuMemsetD8Async(uint64_t memory, unsigned char byte, size_t bytes, Stream* stream) {
    return enqueue(stream, [=] { return memset((void*)memory, byte, bytes), SUCCESS; });
}

int cuStreamCreate(Stream** stream, unsigned) { return *stream = new Stream, SUCCESS; }

int cuStreamSynchronize(Stream* stream) { return stream ? stream->synchronize() : INVALID_HANDLE; }

int cuStreamQuery(Stream* stream) {
    return !stream ? INVALID_HANDLE : stream->idle() ? stream->synchronize() : NOT_READY;
}

int cuStreamDestroy_v2(Stream* stream) { return delete stream, SUCCESS; }

int cuEventCreate(Event** event, unsigned) { return *event = new Event, SUCCESS; }

int cuEventRecord(Event* event, Stream* stream) {
    return stream ? event->record(*stream), SUCCESS : INVALID_HANDLE;
}

int cuEventSynchronize(Event* event) { return event->synchronize(), SUCCESS; }

int cuEventQuery(Event* event) { return event->passed() ? SUCCESS : NOT_READY; }

int cuEventDestroy_v2(Event* event) { return delete event, SUCCESS; }

int cuStreamWaitEvent(Stream* stream, Event* event, unsigned) {
    return stream ? event->hold_up(*stream), SUCCESS : INVALID_HANDLE;
}

int cuModuleLoadData(Module** module, const void* image) {
    Module found;
    const char mark[] = ".entry ";
    for (const char* at = static_cast<const char*>(image); (at = strstr(at, mark));) {
        at += strlen(mark);
        found.kernels.insert(std::string(at, strcspn(at, "( \n")));
    }
    for (const std::string& name : found.kernels) {
        if (!software::find(name.c_str())) {
            return INVALID_IMAGE;
        }
    }
    return found.kernels.empty() ? INVALID_IMAGE : (*module = new Module(found), SUCCESS);
}

int cuModuleGetFunction(const Kernel** kernel, Module* module, const char* name) {
    *kernel = module->kernels.count(name) ? software::find(name) : nullptr;
    return *kernel ? SUCCESS : NOT_FOUND;
}

int cuModuleUnload(Module* module) { return delete module, SUCCESS; }

int cuLaunchKernel(const Kernel* kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared, Stream* stream, void** parameters, void**) {
    return launch(kernel, {grid_x, grid_y, grid_z, block_x, block_y, block_z}, shared, stream, parameters);
}

int cuLaunchCooperativeKernel(const Kernel* kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                              unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                              Stream* stream, void** parameters) {
    if (!software::fits(grid_x)) {
        return COOPERATIVE_LAUNCH_TOO_LARGE;
    }
    return launch(kernel, {grid_x, grid_y, grid_z, block_x, block_y, block_z}, shared, stream, parameters);
}

} // extern "C"
