// Positions and lengths of a program's blocks in the current slice: the engine's layout
// (`src/engine/layout.rs`).
#pragma once

#include "schedule_arguments.cuh"

// State of one block of threads: a lane program of one channel.
struct KernelContext {
    const ScheduleArgs& args;
    u32 channel;
    // Lane, of all lanes of the communicator.
    u32 lane;
    u64 slice;
    // Current instruction of the lane program.
    u32 instr;
    // Instances of window programs that the channel has run, and the signals given in this one.
    u64 window_sequence;
    u64 signals;
    // Scratch of this lane program and channel.
    u8* scratch;
    // Lengths of the scratch blocks. Only one thread reads and writes them.
    u64* lengths;
};

struct Range {
    u64 start;
    u64 end;
};

DEVICE u64 min_u64(u64 left, u64 right) { return left < right ? left : right; }

// The slice of block `index` of a buffer; empty past its end.
DEVICE Range slice_range(const BufferLayout& extent, u32 index, const KernelContext& context) {
    u32 share = index / extent.chunks_per_share, part = index - share * extent.chunks_per_share;
    u64 start = share * extent.share_bytes, bytes = extent.share_bytes, stride = extent.stride;
    if (extent.table) {
        const Share& row = extent.table[share];
        start = row.start;
        bytes = row.bytes;
        stride = row.stride;
    }
    u64 end = start + min_u64((part + 1) * stride, bytes);
    u64 first = min_u64(start + min_u64(part * stride, bytes) + context.slice * context.args.slice_bytes, end);
    return {first, min_u64(first + context.args.slice_bytes, end)};
}

// Returns true if the block's length follows from the user's buffers alone.
DEVICE bool is_user_buffer(const ChunkRef& chunk) { return chunk.space == INPUT || chunk.space == OUTPUT; }

DEVICE const BufferLayout& layout_of(const KernelContext& context, const ChunkRef& chunk) {
    return chunk.space == INPUT ? context.args.input : context.args.output;
}

DEVICE u64 bytes_of(const KernelContext& context, const ChunkRef& chunk) {
    if (is_user_buffer(chunk)) {
        Range slice = slice_range(layout_of(context, chunk), chunk.index, context);
        return slice.end - slice.start;
    }
    // Other threads may write lengths meanwhile, but a block is never longer than its chunk.
    return chunk.space == SCRATCH ? min_u64(context.lengths[chunk.index], context.args.slice_bytes) : 0;
}

DEVICE u8* address_of(const KernelContext& context, const ChunkRef& chunk) {
    if (is_user_buffer(chunk)) {
        const BufferLayout& extent = layout_of(context, chunk);
        u8* base = extent.base;
        if (chunk.rank != context.args.rank) {
            const PeerBuffers& lent = context.args.peer_buffers[chunk.rank];
            base = chunk.space == INPUT ? lent.input : lent.output;
        }
        return base + slice_range(extent, chunk.index, context).start;
    }
    u64 offset = chunk.index * context.args.slice_bytes;
    if (chunk.space == SCRATCH) {
        return context.scratch + offset;
    }
    u64 parity = context.channel * 2 + (context.window_sequence & 1);
    return context.args.peer_windows[chunk.rank].window + parity * context.args.parity_bytes + offset;
}

// Scratch is as long as what was last put there.
DEVICE void put_bytes(const KernelContext& context, const ChunkRef& chunk, u64 bytes) {
    if (chunk.space == SCRATCH) {
        context.lengths[chunk.index] = bytes;
    }
}

// Bytes that a step between these chunks moves: the caller's buffers decide, else scratch.
DEVICE u64 common_bytes(const KernelContext& context, const ChunkRef* chunks, u32 count) {
    const ChunkRef* scratch = nullptr;
#pragma unroll 1
    for (u32 index = 0; index < count; index++) {
        if (is_user_buffer(chunks[index])) {
            return bytes_of(context, chunks[index]);
        }
        scratch = !scratch && chunks[index].space == SCRATCH ? chunks + index : scratch;
    }
    return scratch ? bytes_of(context, *scratch) : 0;
}
