// Groups of waits and copies that do not touch each other's memory: each thread waits for, or
// builds, some of them, and all threads copy. The host marks groups (`Instr::mark_groups`).
#pragma once

#include "build_work.cuh"
#include "windows.cuh"

DEVICE bool is_local(const Instr& instr) { return instr.opcode == COPY || instr.opcode == REDUCE; }

// Number of instructions in the group of this one.
DEVICE u32 group_size(const Instr& instr) { return instr.group_size > 1 ? instr.group_size : 1; }

DEVICE bool is_group(const Instr& instr) { return instr.opcode == WAIT || instr.group_size > 1; }

// All waits, before any copy: no peer waits for these copies, as signals come later.
DEVICE bool wait_group(const KernelContext& context, const Instr* instrs) {
    bool there = true;
#pragma unroll 1
    for (u32 index = threadIdx.x; index < group_size(*instrs) && there; index += blockDim.x) {
        there = instrs[index].opcode != WAIT || wait_signal(context, instrs[index], context.instr + index);
    }
    return there;
}

// Builds a pass for each instruction. The pass of a wait, or of data in its place already, has no
// bytes.
DEVICE void build_pass(WorkDesc& work, const KernelContext& context, const Instr& instr, u32 index) {
    const ChunkRef* chunks = context.args.chunks + instr.first_chunk;
    work.bytes[index] = 0;
    if (instr.opcode == WAIT) {
        return;
    }
    u64 bytes = common_bytes(context, chunks, 2);
    work.factors[index] = factor_of(context, chunks[0]);
    work.sources[index] = address_of(context, chunks[0]);
    work.targets[index] = address_of(context, chunks[1]);
    put_bytes(context, chunks[1], bytes);
    work.bytes[index] = bytes;
}

DEVICE void build_group_work(WorkDesc& work, const KernelContext& context, const Instr* instrs) {
    u32 count = group_size(*instrs);
    bool scaled = false;
#pragma unroll 1
    for (u32 index = threadIdx.x; index < count; index += blockDim.x) {
        build_pass(work, context, instrs[index], index);
    }
    if (threadIdx.x != 0) {
        return;
    }
#pragma unroll 1
    for (u32 index = 0; index < count; index++) {
        scaled = scaled || (instrs[index].opcode == COPY && context.args.chunks[instrs[index].first_chunk].space == INPUT);
    }
    work.source_count = work.target_count = 1;
    work.passes = count;
    set_op(work, context.args, scaled, false);
}
