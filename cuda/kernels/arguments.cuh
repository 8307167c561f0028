// The arguments of every kernel, one struct each. `src/device/arguments.rs` has them for the host; its
// table of offsets writes `layout.cuh`, which asserts the same of these.
#pragma once

#include "machine.cuh"

constexpr u32 SOURCES_MAX = 16;
constexpr u32 TARGETS_MAX = 16;

// Every target becomes sources[0] + sources[1] + ...; a source may be a target.
struct ReduceCopy {
    const u8* sources[SOURCES_MAX];
    u8* targets[TARGETS_MAX];
    // PreMulSum: bits of what each source is multiplied by, in the type that it accumulates in.
    u64 factors[SOURCES_MAX];
    // In elements.
    u64 count;
    u32 source_count;
    u32 target_count;
    // Avg: what the sum is divided by.
    u32 divisor;
    u32 unused;
};

#include "layout.cuh"
