// The C interface of the emulator: launches of kernels that are linked with it, and its memory.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// How a kernel is launched.
struct unisono_launch {
    const char* kernel;
    // The struct that it takes.
    const void* arguments;
    uint32_t blocks;
    uint32_t threads;
    // Not 0: refuses unless all blocks can be resident at once.
    uint32_t cooperative;
};

// Runs a kernel to its end. 0, or 1: then `unisono_error` says why.
int unisono_run(const struct unisono_launch* launch);
// Returns the message of the last failed call of this thread.
const char* unisono_error(void);
// The name of each kernel in turn; null behind the last.
const char* unisono_kernel(uint32_t index);
// Blocks that can be resident at once, of all launches together: multiprocessors of a GPU.
void unisono_set_max_resident_blocks(uint32_t blocks);
// GPUs of that many blocks each that there are, at most 8; 1 at first.
void unisono_set_gpu_count(uint32_t count);
// No block of this kernel fits on a GPU from now on; an unknown one: all do.
void unisono_set_oversized_kernel(const char* kernel);
// The version of CUDA that the driver says it is of: 12040, at first, is 12.4.
void unisono_set_cuda_version(uint32_t version);
// How one GPU reaches the memory of another: whether directly, how well (0 is best), whether with
// atomics. At first all do, equally well.
void unisono_set_peer_path(uint32_t from, uint32_t to, uint32_t direct, uint32_t rank, uint32_t atomics);
// Pieces of work that a stream holds before a launch waits for room in it; 1024 at first.
void unisono_set_stream_capacity(uint32_t count);
// Keeps a rule of real drivers, or does not. 0 if there is no rule of this name.
uint32_t unisono_set_rule(const char* name, uint32_t wanted);
// The name of each rule in turn, null behind the last; what it does; and whether it is kept.
const char* unisono_rule(uint32_t index);
const char* unisono_rule_effect(uint32_t index);
uint32_t unisono_rule_is_on(uint32_t index);
// How often a function of libcuda was called in this process, by its name, with or without the
// number of its version; and the name of each function that was called, null behind the last.
uint64_t unisono_call_count(const char* name);
const char* unisono_call(uint32_t index);
// Images of modules that were loaded: 0 counts PTX, 1 cubins.
uint64_t unisono_images(uint32_t kind);
// 0: machine code is refused from now on, as by a driver that is told to compile PTX.
void unisono_set_accepts_cubins(uint32_t accepts);
// Chooses the order in which blocks and threads run.
void unisono_set_seed(uint64_t seed);

// Device memory: filled with 0xa5, between guards. Null where there is none left.
void* unisono_allocate(uint64_t bytes);
// 0, or 1 if it was not allocated or a guard was overwritten.
int unisono_free(void* memory);

#ifdef __cplusplus
}
#endif
