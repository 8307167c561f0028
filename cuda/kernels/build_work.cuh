// Builds the descriptor of the data that an instruction moves. Run by one thread of a block.
#pragma once

#include "work.cuh"
#include "message.cuh"

DEVICE u64 factor_of(const KernelContext& context, const ChunkRef& chunk) {
    return chunk.space == INPUT ? context.args.factor : context.args.one;
}

// Passes of a message in one descriptor: each has at most two sources and two targets.
constexpr u32 PASSES_IN_FLIGHT = OPERANDS_MAX / 2;

// Distance from one block of a message to the next.
DEVICE u64 slot_bytes(u64 bytes) { return (bytes + sizeof(Words) - 1) / sizeof(Words) * sizeof(Words); }

// Adds a pass of a message in slots: from `own` (or null) and the received data, to `into` (or
// null) and the sent data.
DEVICE void add_pass(WorkDesc& work, const KernelContext& context, const ChunkRef* own, const ChunkRef* into, const MessageState& message) {
    u32 source = work.passes * work.source_count, target = work.passes * work.target_count;
    if (own) {
        work.factors[source] = factor_of(context, *own);
        work.sources[source++] = address_of(context, *own);
    }
    if (message.arrived) {
        work.factors[source] = context.args.one;
        work.sources[source] = message.arrived + message.offset;
    }
    if (into) {
        work.targets[target++] = address_of(context, *into);
    }
    if (message.leaving) {
        work.targets[target] = message.leaving + message.offset;
    }
}

// The same of a message in lines.
DEVICE void add_line_pass(WorkDesc& work, const KernelContext& context, const ChunkRef* own, const ChunkRef* into) {
    work.sources[work.passes] = own ? address_of(context, *own) : nullptr;
    work.factors[work.passes] = own ? factor_of(context, *own) : context.args.one;
    work.targets[work.passes] = into ? address_of(context, *into) : nullptr;
}

// The next blocks of a message, from `first` on.
DEVICE void build_message_work(WorkDesc& work, const KernelContext& context, const Instr& instr, u32 first, MessageState& message) {
    const ChunkRef* chunks = context.args.chunks + instr.first_chunk;
    bool reads = instr.opcode != RECV, writes = instr.opcode != SEND;
    u32 last = first + PASSES_IN_FLIGHT < instr.operands ? first + PASSES_IN_FLIGHT : instr.operands;
    bool lines = context.args.protocol != SIMPLE, scaled = false;
    work.lines = {message.arrived, message.leaving, message.offset, message.arrived_step, message.leaving_step,
                  last == instr.operands ? message.refresh : 0};
    work.passes = 0;
    work.source_count = (reads ? 1 : 0) + (message.arrived ? 1 : 0);
    work.target_count = (writes ? 1 : 0) + (message.leaving ? 1 : 0);
#pragma unroll 1
    for (u32 index = first; index < last; index++) {
        const ChunkRef* chunk = chunks + index;
        bool told = instr.opcode == RECV && !is_user_buffer(*chunk);
        u64 bytes = told ? message.each : bytes_of(context, *chunk);
        const ChunkRef* into = instr.opcode == RECV_REDUCE ? chunk + instr.operands : writes ? chunk : nullptr;
        scaled = scaled || (reads && chunk->space == INPUT);
        if (lines) {
            add_line_pass(work, context, reads ? chunk : nullptr, into);
        } else {
            add_pass(work, context, reads ? chunk : nullptr, into, message);
        }
        if (into) {
            put_bytes(context, *into, bytes);
        }
        work.bytes[work.passes++] = bytes;
        message.offset += lines ? line_bytes(context.args.protocol, bytes) : slot_bytes(bytes);
    }
    set_op(work, context.args, scaled, instr.post_op != 0);
}

// Builds a copy or a reduction within this rank, or from and to windows: one pass.
DEVICE void build_local_work(WorkDesc& work, const KernelContext& context, const Instr& instr) {
    const ChunkRef* chunks = context.args.chunks + instr.first_chunk;
    bool scaled = false;
    u64 bytes = common_bytes(context, chunks, instr.operands + instr.targets);
#pragma unroll 1
    for (u32 index = 0; index < instr.operands; index++) {
        scaled = scaled || chunks[index].space == INPUT;
        work.factors[index] = factor_of(context, chunks[index]);
        work.sources[index] = address_of(context, chunks[index]);
    }
#pragma unroll 1
    for (u32 index = 0; index < instr.targets; index++) {
        work.targets[index] = address_of(context, chunks[instr.operands + index]);
        put_bytes(context, chunks[instr.operands + index], bytes);
    }
    work.bytes[0] = bytes;
    work.source_count = instr.operands;
    work.target_count = instr.targets;
    set_op(work, context.args, scaled, instr.post_op != 0);
    // Data that is in its place already is not copied.
    bool stays = work.op == OP_COPY && instr.targets == 1 && work.sources[0] == work.targets[0];
    work.passes = stays ? 0 : 1;
}
