// Functions of libcuda for modules, functions and launches. A module is PTX text or a cubin. Its
// kernels are those of the same names that are linked with the emulator.
#include "driver.hpp"
#include "image.hpp"
#include "launch.hpp"
#include "memory.hpp"
#include "rules.hpp"
#include "emulator.h"

#include <atomic>
#include <set>
#include <stdio.h>
#include <string.h>

using namespace emulator;

namespace {

struct Module {
    std::set<std::string> kernels;
};

// Functions whose code each GPU has.
std::mutex& loaded_mutex = *new std::mutex;
std::set<const Kernel*>* const loaded = new std::set<const Kernel*>[GPUS_MAX];

// The kernel of which no block fits on a multiprocessor.
std::atomic<const Kernel*> too_large{nullptr};

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

// Shape of a launch.
struct Shape {
    unsigned grid[3], block[3], shared;
    bool cooperative;
};

// Why a launch cannot be, or SUCCESS.
int refuse(const Kernel* kernel, const Shape& shape, void** parameters) {
    if (!kernel || !parameters) {
        return INVALID_VALUE;
    }
    if (shape.grid[1] != 1 || shape.grid[2] != 1 || shape.block[1] != 1 || shape.block[2] != 1 || shape.shared != 0) {
        return NOT_SUPPORTED;
    }
    unsigned together = emulator::blocks_together(*kernel, shape.block[0]);
    if (shape.block[0] > 1024 || together == 0) {
        return shape.block[0] > 1024 ? INVALID_VALUE : LAUNCH_OUT_OF_RESOURCES;
    }
    return shape.cooperative && !emulator::fits(shape.grid[0], together) ? COOPERATIVE_LAUNCH_TOO_LARGE : SUCCESS;
}

// Runs a launch from a copy of its arguments. Errors are also printed, because the caller gets only
// a number.
int launch(const Kernel* kernel, const Shape& shape, Stream* stream, void** parameters) {
    if (int refused = refuse(kernel, shape, parameters)) {
        return refused;
    }
    auto* start = static_cast<const unsigned char*>(parameters[0]);
    std::vector<unsigned char> arguments(start, start + kernel->bytes);
    unsigned blocks = shape.grid[0], threads = shape.block[0];
    int gpu = stream ? stream->gpu() : 0;
    unsigned urgency = stream ? stream->urgency() : 0;
    bring(kernel, gpu);
    return enqueue_launch(stream, [=]() -> int {
        int error = error_left(gpu);
        if (!error && !may_use_pointers(gpu, arguments)) {
            error = ILLEGAL_ADDRESS;
            fprintf(stderr, "CUDA emulator: %s has a pointer to memory of a GPU without peer access\n", kernel->name);
        } else if (!error) {
            error = emulator::run(*kernel, arguments.data(), blocks, threads, {gpu, urgency});
            if (error) {
                fprintf(stderr, "CUDA emulator: %s\n", unisono_error());
            }
        }
        if (error) {
            leave_error(gpu, error);
        }
        return error;
    });
}

// Writes to the log, if there is one, which function has no code.
int explain(const std::string& name, unsigned options, const int* which, void** values) {
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

int load(Module** module, const void* image, unsigned options, const int* which, void** values) {
    if (on(Rule::ModuleLoadWaits)) {
        Stream::synchronize_all(current_gpu());
    }
    Module found;
    if (int error = find_kernels(image, found.kernels)) {
        return error;
    }
    for (const std::string& name : found.kernels) {
        if (!emulator::find(name.c_str())) {
            return explain(name, options, which, values);
        }
    }
    count_image(is_cubin(image) ? Image::Cubin : Image::Ptx);
    return *module = new Module(found), SUCCESS;
}

// `CUlaunchAttribute`.
struct Attribute {
    int id;
    char unused[4];
    union {
        int number;
        unsigned dimensions[3];
        char bytes[64];
    } value;
};

// `CUlaunchConfig`.
struct Config {
    unsigned grid[3], block[3], shared;
    Stream* stream;
    const Attribute* attributes;
    unsigned count;
};

// Numbers of `CUlaunchAttributeID` that launches take. Those that say nothing about the order of
// work change nothing here. The next launch may begin before its predecessor has ended with
// PROGRAMMATIC_SERIALIZATION, and need not.
enum AttributeId {
    IGNORE = 0,
    COOPERATIVE = 2,
    CLUSTER_DIMENSION = 4,
    PROGRAMMATIC_SERIALIZATION = 6,
    PRIORITY = 8,
    MEM_SYNC_DOMAIN_MAP = 9,
    MEM_SYNC_DOMAIN = 10,
};

int refuse_cluster(const unsigned (&cluster)[3], const unsigned (&grid)[3]) {
    const unsigned BLOCKS_MAX = 8;
    unsigned blocks = 1;
    for (int axis = 0; axis < 3; axis++) {
        if (cluster[axis] == 0 || grid[axis] % cluster[axis] != 0) {
            return INVALID_VALUE;
        }
        blocks *= cluster[axis];
    }
    return blocks > BLOCKS_MAX || settings().capability < 90 ? INVALID_CLUSTER_SIZE : SUCCESS;
}

// Applies an attribute of a launch, or refuses it.
int apply(const Attribute& attribute, Shape& shape) {
    switch (attribute.id) {
    case COOPERATIVE: return shape.cooperative = attribute.value.number != 0, SUCCESS;
    case CLUSTER_DIMENSION: return refuse_cluster(attribute.value.dimensions, shape.grid);
    // The domains are the default one and the remote one.
    case MEM_SYNC_DOMAIN: return attribute.value.number == 0 || attribute.value.number == 1 ? SUCCESS : INVALID_VALUE;
    case IGNORE:
    case PROGRAMMATIC_SERIALIZATION:
    case PRIORITY:
    case MEM_SYNC_DOMAIN_MAP: return SUCCESS;
    default: return INVALID_VALUE;
    }
}

} // namespace

void unisono_set_oversized_kernel(const char* kernel) { too_large = emulator::find(kernel); }

extern "C" {

int cuModuleLoadDataEx(Module** module, const void* image, unsigned options, const int* which, void** values) {
    CALL(CONTEXT | UNSAFE)
    return load(module, image, options, which, values);
}

int cuModuleLoadData(Module** module, const void* image) {
    CALL(CONTEXT | UNSAFE)
    return load(module, image, 0, nullptr, nullptr);
}

int cuModuleGetFunction(const Kernel** kernel, Module* module, const char* name) {
    CALL(CONTEXT)
    *kernel = module->kernels.count(name) ? emulator::find(name) : nullptr;
    return *kernel ? SUCCESS : NOT_FOUND;
}

int cuModuleUnload(Module* module) {
    CALL(CONTEXT | UNSAFE)
    return delete module, SUCCESS;
}

int cuFuncLoad(const Kernel* kernel) {
    CALL(CONTEXT | UNSAFE)
    return bring(kernel, current_gpu()), SUCCESS;
}

int cuFuncGetAttribute(int* value, int attribute, const Kernel* kernel) {
    CALL(CONTEXT)
    bring(kernel, current_gpu());
    const int THREADS_OF_A_BLOCK = 0, REGISTERS_OF_A_THREAD = 4;
    switch (attribute) {
    case THREADS_OF_A_BLOCK: return *value = int(emulator::threads_max(*kernel)), SUCCESS;
    case REGISTERS_OF_A_THREAD: return *value = int(emulator::registers(*kernel)), SUCCESS;
    default: return *value = 0, SUCCESS;
    }
}

int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const Kernel* kernel, int threads, size_t) {
    CALL(CONTEXT)
    bool fits = threads > 0 && threads <= 1024 && kernel != too_large;
    return *blocks = fits ? int(emulator::blocks_together(*kernel, unsigned(threads))) : 0, SUCCESS;
}

int cuLaunchKernel(const Kernel* kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared, Stream* stream, void** parameters, void**) {
    CALL(CONTEXT)
    Shape shape = {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared, false};
    return launch(kernel, shape, stream, parameters);
}

int cuLaunchCooperativeKernel(const Kernel* kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                              unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                              Stream* stream, void** parameters) {
    CALL(CONTEXT)
    Shape shape = {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared, true};
    return launch(kernel, shape, stream, parameters);
}

int cuLaunchKernelEx(const Config* config, const Kernel* kernel, void** parameters, void**) {
    CALL(CONTEXT)
    Shape shape = {{config->grid[0], config->grid[1], config->grid[2]},
                   {config->block[0], config->block[1], config->block[2]},
                   config->shared,
                   false};
    for (unsigned index = 0; index < config->count; index++) {
        if (int refused = apply(config->attributes[index], shape)) {
            return refused;
        }
    }
    return launch(kernel, shape, config->stream, parameters);
}

} // extern "C"
