// Functions of libcuda by their names, over the emulator: GPUs, streams, events, modules, launches.
// There is no default stream. A module is PTX text. Its kernels are those of the same names that
// are linked with the emulator.
#include "driver.hpp"
#include "launch.hpp"
#include "rules.hpp"
#include "emulator.h"

#include <atomic>
#include <mutex>
#include <set>
#include <stdio.h>
#include <string.h>
#include <string>
#include <vector>

using namespace emulator;

namespace {

struct Module {
    std::set<std::string> kernels;
};

// Functions whose code each GPU has.
std::mutex loaded_mutex;
std::set<const Kernel*> loaded[GPUS_MAX];

// One context for each GPU.
char contexts[GPUS_MAX];
std::atomic<int> gpus{settings().gpus};
// The kernel of which no block fits on a multiprocessor.
std::atomic<const Kernel*> too_large{nullptr};
// Operations that a stream holds before launches wait.
std::atomic<size_t> pending{1024};
std::atomic<int> cuda_version{12040};
// Path from a GPU to the memory of another.
struct Path {
    std::atomic<int> direct{1}, rank{0}, atomics{1};
};
Path paths[GPUS_MAX][GPUS_MAX];
// Peer access between GPUs.
std::atomic<bool> peers[GPUS_MAX][GPUS_MAX];
thread_local char* current = nullptr;

int gpu_of(const void* context) {
    auto* known = static_cast<const char*>(context);
    return known >= contexts && known < contexts + gpus ? int(known - contexts) : -1;
}

// Loads a function's code to a GPU. This may need an idle GPU: a kernel that waits for a later
// launch then waits for ever.
void bring(const Kernel* kernel, int gpu) {
    {
        std::lock_guard lock(loaded_mutex);
        if (loaded[gpu].count(kernel)) {
            return;
        }
    }
    if (on(Rule::ModuleLoadWaits)) {
        Stream::synchronize_all(gpu);
    }
    std::lock_guard lock(loaded_mutex);
    loaded[gpu].insert(kernel);
}

// Runs a launch from a copy of its arguments. Errors are also printed, because the caller gets only
// a number.
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
    int gpu = stream ? stream->gpu() : 0;
    unsigned urgency = stream ? stream->urgency() : 0;
    bring(kernel, gpu);
    return enqueue_launch(stream, [=]() -> int {
        if (emulator::run(*kernel, arguments.data(), blocks, threads, {gpu, urgency}) == 0) {
            return SUCCESS;
        }
        fprintf(stderr, "CUDA emulator: %s\n", unisono_error());
        return LAUNCH_FAILED;
    });
}

// Writes to the log, if there is one, which function has no code.
int refuse(const std::string& name, unsigned options, const int* which, void** values) {
    const int LOG = 5, LOG_BYTES = 6;
    char* log = nullptr;
    size_t bytes = 0;
    for (unsigned index = 0; index < options; index++) {
        log = which[index] == LOG ? static_cast<char*>(values[index]) : log;
        bytes = which[index] == LOG_BYTES ? size_t(values[index]) : bytes;
    }
    if (log) {
        snprintf(log, bytes, "no kernel %s", name.c_str());
    }
    return INVALID_IMAGE;
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
    {PEER_ACCESS_UNSUPPORTED, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported"},
    {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {PEER_ACCESS_ALREADY_ENABLED, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled"},
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

// The waits that a capture forbids end it.
int unless_captured(Stream* stream, int (*wait)(Stream*)) {
    return !stream ? INVALID_HANDLE : stream->spoil_capture() ? CAPTURE_UNSUPPORTED : wait(stream);
}

} // namespace

int emulator::enqueue_launch(Stream* stream, Stream::Work work) {
    if (stream) {
        stream->wait_for_room(pending);
    }
    return enqueue(stream, std::move(work));
}

int emulator::current_gpu() { return current ? int(current - contexts) : 0; }

void unisono_set_gpu_count(uint32_t count) { gpus = count < GPUS_MAX ? int(count) : GPUS_MAX; }

void unisono_set_peer_path(uint32_t from, uint32_t to, uint32_t direct, uint32_t rank, uint32_t atomics) {
    if (from < GPUS_MAX && to < GPUS_MAX) {
        Path& path = paths[from][to];
        path.direct = direct != 0, path.rank = int(rank), path.atomics = atomics != 0;
    }
}

void unisono_set_stream_capacity(uint32_t count) { pending = count > 0 ? count : 1; }

void unisono_set_cuda_version(uint32_t version) { cuda_version = int(version); }

void unisono_set_oversized_kernel(const char* kernel) { too_large = emulator::find(kernel); }

extern "C" {

int cuInit(unsigned flags) {
    if (!settings().mistake.empty()) {
        return fprintf(stderr, "CUDA emulator: %s\n", settings().mistake.c_str()), UNKNOWN;
    }
    return flags == 0 ? SUCCESS : INVALID_VALUE;
}

int cuDriverGetVersion(int* version) { return *version = cuda_version, SUCCESS; }

int cuGetErrorName(int result, const char** name) {
    const Named* known = named(result);
    return *name = known ? known->name : nullptr, known ? SUCCESS : INVALID_VALUE;
}

int cuGetErrorString(int result, const char** text) {
    const Named* known = named(result);
    return *text = known ? known->text : nullptr, known ? SUCCESS : INVALID_VALUE;
}

int cuDeviceGetCount(int* count) { return *count = gpus, SUCCESS; }

int cuDeviceGet(int* device, int ordinal) {
    *device = ordinal;
    return ordinal >= 0 && ordinal < gpus ? SUCCESS : INVALID_DEVICE;
}

int cuDeviceGetName(char* name, int bytes, int) {
    return snprintf(name, size_t(bytes), "%s", settings().name.c_str()), SUCCESS;
}

// A multiprocessor has room for one block. Attributes without a meaning here are 0.
int cuDeviceGetAttribute(int* value, int attribute, int) {
    switch (attribute) {
    case 1: return *value = 1024, SUCCESS; // threads of a block
    case 16: return *value = int(emulator::max_resident_blocks()), SUCCESS; // multiprocessors
    case 19: // maps memory of the host
    case 41: // one address space
    case 95: return *value = 1, SUCCESS; // cooperative launches
    case 75: return *value = settings().capability / 10, SUCCESS; // compute capability
    case 76: return *value = settings().capability % 10, SUCCESS;
    default: return *value = 0, SUCCESS;
    }
}

int cuDeviceCanAccessPeer(int* can, int own, int peer) {
    return *can = own != peer && paths[own][peer].direct, SUCCESS;
}

int cuDeviceGetP2PAttribute(int* value, int attribute, int own, int peer) {
    const Path& path = paths[own][peer];
    switch (own == peer ? 0 : attribute) {
    case 1: return *value = path.rank, SUCCESS;
    case 2: return *value = path.direct, SUCCESS;
    case 3: return *value = path.direct && path.atomics, SUCCESS;
    default: return INVALID_VALUE;
    }
}

int cuDeviceGetPCIBusId(char* id, int bytes, int device) {
    return snprintf(id, size_t(bytes), "FFFF:%02X:00.0", 0x10 + device) < bytes ? SUCCESS : INVALID_VALUE;
}

int cuCtxEnablePeerAccess(void* context, unsigned) {
    int peer = gpu_of(context), own = current_gpu();
    if (peer < 0 || peer == own || !paths[own][peer].direct) {
        return peer < 0 ? INVALID_CONTEXT : PEER_ACCESS_UNSUPPORTED;
    }
    return peers[own][peer].exchange(true) ? PEER_ACCESS_ALREADY_ENABLED : SUCCESS;
}

int cuDevicePrimaryCtxRetain(void** retained, int device) { return *retained = &contexts[device], SUCCESS; }

int cuDevicePrimaryCtxRelease_v2(int) { return SUCCESS; }

int cuCtxSetCurrent(void* wanted) {
    if (wanted && gpu_of(wanted) < 0) {
        return INVALID_CONTEXT;
    }
    return current = static_cast<char*>(wanted), SUCCESS;
}

int cuCtxGetCurrent(void** context) { return *context = current, SUCCESS; }

int cuCtxSynchronize() { return Stream::synchronize_all(current_gpu()), SUCCESS; }

int cuStreamCreate(Stream** stream, unsigned) { return *stream = new Stream(current_gpu(), 0), SUCCESS; }

int cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    return *least = 0, *greatest = -int(PRIORITIES - 1), SUCCESS;
}

// A priority outside of the range becomes the nearest one inside.
int cuStreamCreateWithPriority(Stream** stream, unsigned, int priority) {
    int first = -int(PRIORITIES - 1);
    return *stream = new Stream(current_gpu(), priority < first ? first : priority > 0 ? 0 : priority), SUCCESS;
}

int cuStreamSynchronize(Stream* stream) {
    return unless_captured(stream, [](Stream* stream) { return stream->synchronize(); });
}

int cuStreamQuery(Stream* stream) {
    return unless_captured(stream, [](Stream* stream) -> int {
        return stream->idle() ? stream->synchronize() : NOT_READY;
    });
}

int cuStreamDestroy_v2(Stream* stream) { return stream ? stream->close(), SUCCESS : INVALID_HANDLE; }

int cuEventCreate(Event** event, unsigned) { return *event = new Event, SUCCESS; }

int cuEventRecord(Event* event, Stream* stream) {
    if (!stream || stream->spoil_capture()) {
        return stream ? CAPTURE_UNSUPPORTED : INVALID_HANDLE;
    }
    return event->record(*stream), SUCCESS;
}

int cuEventSynchronize(Event* event) { return event->synchronize(), SUCCESS; }

int cuEventQuery(Event* event) { return event->passed() ? SUCCESS : NOT_READY; }

int cuEventElapsedTime(float* milliseconds, Event* start, Event* end) {
    if (!start->passed() || !end->passed()) {
        return NOT_READY;
    }
    return end->since(*start, *milliseconds) ? SUCCESS : INVALID_HANDLE;
}

int cuEventDestroy_v2(Event* event) { return delete event, SUCCESS; }

int cuStreamWaitEvent(Stream* stream, Event* event, unsigned) {
    if (!stream || stream->spoil_capture()) {
        return stream ? CAPTURE_UNSUPPORTED : INVALID_HANDLE;
    }
    return event->block_stream(*stream), SUCCESS;
}

int cuModuleLoadDataEx(Module** module, const void* image, unsigned options, const int* which, void** values) {
    if (on(Rule::ModuleLoadWaits)) {
        Stream::synchronize_all(current_gpu());
    }
    Module found;
    const char mark[] = ".entry ";
    for (const char* at = static_cast<const char*>(image); (at = strstr(at, mark));) {
        at += strlen(mark);
        found.kernels.insert(std::string(at, strcspn(at, "( \n")));
    }
    for (const std::string& name : found.kernels) {
        if (!emulator::find(name.c_str())) {
            return refuse(name, options, which, values);
        }
    }
    return found.kernels.empty() ? INVALID_IMAGE : (*module = new Module(found), SUCCESS);
}

int cuModuleGetFunction(const Kernel** kernel, Module* module, const char* name) {
    *kernel = module->kernels.count(name) ? emulator::find(name) : nullptr;
    return *kernel ? SUCCESS : NOT_FOUND;
}

int cuModuleUnload(Module* module) { return delete module, SUCCESS; }

int cuFuncLoad(const Kernel* kernel) { return bring(kernel, current_gpu()), SUCCESS; }

int cuFuncGetAttribute(int* value, int attribute, const Kernel* kernel) {
    bring(kernel, current_gpu());
    return *value = attribute == 0 ? 1024 : 0, SUCCESS;
}

int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const Kernel* kernel, int threads, size_t) {
    return *blocks = threads > 0 && threads <= 1024 && kernel != too_large, SUCCESS;
}

int cuLaunchKernel(const Kernel* kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared, Stream* stream, void** parameters, void**) {
    return launch(kernel, {grid_x, grid_y, grid_z, block_x, block_y, block_z}, shared, stream, parameters);
}

int cuLaunchCooperativeKernel(const Kernel* kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                              unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                              Stream* stream, void** parameters) {
    if (!emulator::fits(grid_x)) {
        return COOPERATIVE_LAUNCH_TOO_LARGE;
    }
    return launch(kernel, {grid_x, grid_y, grid_z, block_x, block_y, block_z}, shared, stream, parameters);
}

} // extern "C"
