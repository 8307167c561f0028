// Functions of libcuda by their names, over the emulator: GPUs and contexts. There is no default
// stream.
#include "driver.hpp"
#include "image.hpp"
#include "launch.hpp"
#include "queues.hpp"
#include "rules.hpp"
#include "emulator.h"

#include <atomic>
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string>
#include <string.h>

using namespace emulator;

namespace {

// One context for each GPU.
char contexts[GPUS_MAX];
std::atomic<int> gpus{settings().gpus};
std::atomic<int> cuda_version{12040};
// Path from a GPU to the memory of another.
struct Path {
    std::atomic<int> direct{1}, rank{0}, atomics{1};
};
Path paths[GPUS_MAX][GPUS_MAX];
// Peer access between GPUs.
std::atomic<bool> peers[GPUS_MAX][GPUS_MAX];
thread_local char* current = nullptr;
// The text of the last failed call of the system.
thread_local std::string system_text;

int gpu_of(const void* context) {
    auto* known = static_cast<const char*>(context);
    return known >= contexts && known < contexts + gpus ? int(known - contexts) : -1;
}

struct Named {
    int result;
    const char *name, *text;
};

const Named RESULTS[] = {
    {SUCCESS, "CUDA_SUCCESS", "no error"},
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    {PEER_ACCESS_UNSUPPORTED, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported"},
    {OPERATING_SYSTEM, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported on this OS"},
    {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {PEER_ACCESS_ALREADY_ENABLED, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled"},
    {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {LAUNCH_OUT_OF_RESOURCES, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {PEER_ACCESS_NOT_ENABLED, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", "peer access has not been enabled"},
    {MISALIGNED_ADDRESS, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
    {CAPTURE_UNMATCHED, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "capture was not initiated in this stream"},
    {CAPTURE_UNJOINED, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work"},
    {CAPTURE_ISOLATION, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
     "dependency created on uncaptured work in another stream"},
    {CAPTURED_EVENT, "CUDA_ERROR_CAPTURED_EVENT",
     "operation not permitted on an event last recorded in a capturing stream"},
    {CAPTURE_WRONG_THREAD, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
     "attempt to terminate a thread-local capture sequence from another thread"},
    {INVALID_CLUSTER_SIZE, "CUDA_ERROR_INVALID_CLUSTER_SIZE", "invalid cluster size"},
    {LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {COOPERATIVE_LAUNCH_TOO_LARGE, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE",
     "too many blocks in cooperative launch"},
    {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
    {CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
};

const Named* named(int result) {
    for (const Named& each : RESULTS) {
        if (each.result == result) {
            return &each;
        }
    }
    return nullptr;
}

} // namespace

int emulator::gpu_count() { return gpus; }

int emulator::current_gpu() { return current ? int(current - contexts) : 0; }

bool emulator::reaches(int gpu, int owner) { return gpu == owner || peers[gpu][owner]; }

void emulator::let_reach(int gpu, int owner) { peers[gpu][owner] = true; }

const char* emulator::result_name(int result) {
    const Named* known = named(result);
    return known ? known->name : "an unknown error";
}

int emulator::system_error() {
    int error = errno;
    bool files = error == EMFILE || error == ENFILE;
    if (!files && error != EACCES && error != EPERM) {
        return OUT_OF_MEMORY;
    }
    system_text = std::string("the system gives the emulator no memory: ") + strerror(error) +
                  (files ? "; raise `ulimit -n`, the limit of open files" : "");
    return OPERATING_SYSTEM;
}

void unisono_set_gpu_count(uint32_t count) { gpus = count < GPUS_MAX ? int(count) : GPUS_MAX; }

void unisono_set_peer_path(uint32_t from, uint32_t to, uint32_t direct, uint32_t rank, uint32_t atomics) {
    if (from < GPUS_MAX && to < GPUS_MAX) {
        Path& path = paths[from][to];
        path.direct = direct != 0, path.rank = int(rank), path.atomics = atomics != 0;
    }
}

void unisono_set_cuda_version(uint32_t version) { cuda_version = int(version); }

extern "C" {

int cuInit(unsigned flags) {
    CALL(PLAIN)
    if (!settings().mistake.empty()) {
        return fprintf(stderr, "CUDA emulator: %s\n", settings().mistake.c_str()), UNKNOWN;
    }
    static const int once = (Queue::set_count_from_environment(), SUCCESS);
    return flags == 0 ? once : INVALID_VALUE;
}

int cuDriverGetVersion(int* version) {
    CALL(PLAIN)
    return *version = cuda_version, SUCCESS;
}

int cuGetErrorName(int result, const char** name) {
    CALL(PLAIN)
    const Named* known = named(result);
    return *name = known ? known->name : nullptr, known ? SUCCESS : INVALID_VALUE;
}

int cuGetErrorString(int result, const char** text) {
    CALL(PLAIN)
    const Named* known = named(result);
    *text = known ? known->text : nullptr;
    if (result == OPERATING_SYSTEM && !system_text.empty()) {
        *text = system_text.c_str();
    }
    return known ? SUCCESS : INVALID_VALUE;
}

// Functions have their newest version, whatever version is asked for.
int cuGetProcAddress_v2(const char* symbol, void** function, int, uint64_t, int* status) {
    CALL(PLAIN)
    *function = nullptr;
    for (const char* version : {"_v3", "_v2", ""}) {
        *function = *function ? *function : dlsym(RTLD_DEFAULT, (std::string(symbol) + version).c_str());
    }
    if (status) {
        *status = *function ? 0 : 1;
    }
    return *function ? SUCCESS : NOT_FOUND;
}

int cuDeviceGetCount(int* count) {
    CALL(PLAIN)
    return *count = gpus, SUCCESS;
}

int cuDeviceGet(int* device, int ordinal) {
    CALL(PLAIN)
    *device = ordinal;
    return ordinal >= 0 && ordinal < gpus ? SUCCESS : INVALID_DEVICE;
}

int cuDeviceGetName(char* name, int bytes, int) {
    CALL(PLAIN)
    return snprintf(name, size_t(bytes), "%s", settings().name.c_str()), SUCCESS;
}

// All processes see the same GPUs.
int cuDeviceGetUuid_v2(unsigned char* uuid, int device) {
    CALL(PLAIN)
    if (device < 0 || device >= gpus) {
        return INVALID_DEVICE;
    }
    memcpy(uuid, "unisono device ", 15);
    return uuid[15] = (unsigned char)device, SUCCESS;
}

int cuDeviceTotalMem_v2(size_t* bytes, int) {
    CALL(PLAIN)
    return *bytes = size_t(80) << 30, SUCCESS;
}

// Attributes without a meaning here are 0.
int cuDeviceGetAttribute(int* value, int attribute, int) {
    CALL(PLAIN)
    switch (attribute) {
    case 1: return *value = 1024, SUCCESS; // threads of a block
    case 10: return *value = 32, SUCCESS; // threads of a warp
    case 12: return *value = int(REGISTERS), SUCCESS; // registers of a block
    case 16: return *value = int(emulator::multiprocessors()), SUCCESS;
    case 39: return *value = int(THREADS), SUCCESS; // threads of a multiprocessor
    case 19: // maps memory of the host
    case 41: // one address space
    case 95: // cooperative launches
    case 102: // virtual memory
    case 103: // its handles are file descriptors
    case 122: // stream memory operations of 64 bits
    case 123: return *value = 1, SUCCESS; // waits for a value's bits
    case 75: return *value = settings().capability / 10, SUCCESS; // compute capability
    case 76: return *value = settings().capability % 10, SUCCESS;
    case 82: return *value = int(REGISTERS), SUCCESS; // registers of a multiprocessor
    case 120: return *value = settings().capability >= 90, SUCCESS; // clusters
    case 132: return *value = on(Rule::Multicast), SUCCESS;
    default: return *value = 0, SUCCESS;
    }
}

int cuDeviceCanAccessPeer(int* can, int own, int peer) {
    CALL(PLAIN)
    return *can = own != peer && paths[own][peer].direct, SUCCESS;
}

int cuDeviceGetP2PAttribute(int* value, int attribute, int own, int peer) {
    CALL(PLAIN)
    const Path& path = paths[own][peer];
    switch (own == peer ? 0 : attribute) {
    case 1: return *value = path.rank, SUCCESS;
    case 2: return *value = path.direct, SUCCESS;
    case 3: return *value = path.direct && path.atomics, SUCCESS;
    default: return INVALID_VALUE;
    }
}

int cuDeviceGetPCIBusId(char* id, int bytes, int device) {
    CALL(PLAIN)
    return snprintf(id, size_t(bytes), "FFFF:%02X:00.0", 0x10 + device) < bytes ? SUCCESS : INVALID_VALUE;
}

int cuCtxEnablePeerAccess(void* context, unsigned) {
    CALL(CONTEXT)
    int peer = gpu_of(context), own = current_gpu();
    if (peer < 0 || peer == own || !paths[own][peer].direct) {
        return peer < 0 ? INVALID_CONTEXT : PEER_ACCESS_UNSUPPORTED;
    }
    return peers[own][peer].exchange(true) ? PEER_ACCESS_ALREADY_ENABLED : SUCCESS;
}

int cuCtxDisablePeerAccess(void* context) {
    CALL(CONTEXT)
    int peer = gpu_of(context), own = current_gpu();
    if (peer < 0 || peer == own) {
        return INVALID_CONTEXT;
    }
    return peers[own][peer].exchange(false) ? SUCCESS : PEER_ACCESS_NOT_ENABLED;
}

int cuDevicePrimaryCtxRetain(void** retained, int device) {
    CALL(PLAIN)
    if (device < 0 || device >= gpus) {
        return INVALID_DEVICE;
    }
    return *retained = &contexts[device], SUCCESS;
}

int cuDevicePrimaryCtxRelease_v2(int) {
    CALL(PLAIN)
    return SUCCESS;
}

// The context forgets the error that it was left with. Memory and streams stay.
int cuDevicePrimaryCtxReset_v2(int device) {
    CALL(PLAIN)
    return clear_error(device), SUCCESS;
}

int cuCtxSetCurrent(void* wanted) {
    CALL(PLAIN)
    if (wanted && gpu_of(wanted) < 0) {
        return INVALID_CONTEXT;
    }
    return current = static_cast<char*>(wanted), SUCCESS;
}

int cuCtxGetCurrent(void** context) {
    CALL(PLAIN)
    return *context = current, SUCCESS;
}

int cuCtxGetDevice(int* device) {
    CALL(PLAIN)
    return *device = current_gpu(), current ? SUCCESS : INVALID_CONTEXT;
}

int cuCtxSynchronize() {
    CALL(CONTEXT | UNSAFE)
    return Stream::synchronize_all(current_gpu()), error_left(current_gpu());
}

} // extern "C"
