// Where the blocks of a program lie in the piece at hand, and how long they are: the engine's layout (`src/engine/layout.rs`).
#pragma once

#include "schedule_arguments.cuh"

// What one block of threads is doing: a strand of one channel.
struct Stage {
    const Interpret& args;
    u32 channel;
    // Of all lanes of the communicator.
    u32 lane;
    u64 piece;
    // Of the strand: the one being done.
    u32 act;
    // Instances of window programs that the channel has run, and the signals given in this one.
    u64 instance;
    u64 signals;
    // Of this strand and channel.
    u8* scratch;
    // Of the blocks of scratch. One thread alone reads and writes them.
    u64* lengths;
};

struct Range {
    u64 start;
    u64 end;
};

DEVICE u64 lesser(u64 left, u64 right) { return left < right ? left : right; }

// The slice of block `index` of a buffer; empty past its end.
DEVICE Range slice_of(const Extent& extent, u32 index, const Stage& stage) {
    u32 share = index / extent.parts, part = index - share * extent.parts;
    u64 start = share * extent.share_bytes, bytes = extent.share_bytes, stride = extent.stride;
    if (extent.table) {
        const Share& row = extent.table[share];
        start = row.start;
        bytes = row.bytes;
        stride = row.stride;
    }
    u64 end = start + lesser((part + 1) * stride, bytes);
    u64 first = lesser(start + lesser(part * stride, bytes) + stage.piece * stage.args.slice_bytes, end);
    return {first, lesser(first + stage.args.slice_bytes, end)};
}

// Whether the block's length follows from the caller's buffers alone.
DEVICE bool is_callers(const Place& place) { return place.space == INPUT || place.space == OUTPUT; }

DEVICE const Extent& extent_of(const Stage& stage, const Place& place) {
    return place.space == INPUT ? stage.args.input : stage.args.output;
}

DEVICE u64 bytes_of(const Stage& stage, const Place& place) {
    if (is_callers(place)) {
        Range slice = slice_of(extent_of(stage, place), place.index, stage);
        return slice.end - slice.start;
    }
    // Whatever else writes lengths meanwhile: a block is no longer than its place.
    return place.space == SCRATCH ? lesser(stage.lengths[place.index], stage.args.slice_bytes) : 0;
}

DEVICE u8* address_of(const Stage& stage, const Place& place) {
    if (is_callers(place)) {
        const Extent& extent = extent_of(stage, place);
        u8* base = extent.base;
        if (place.rank != stage.args.rank) {
            const Lent& lent = stage.args.lent[place.rank];
            base = place.space == INPUT ? lent.input : lent.output;
        }
        return base + slice_of(extent, place.index, stage).start;
    }
    u64 offset = place.index * stage.args.slice_bytes;
    if (place.space == SCRATCH) {
        return stage.scratch + offset;
    }
    u64 bank = stage.channel * 2 + (stage.instance & 1);
    return stage.args.neighbours[place.rank].window + bank * stage.args.bank_bytes + offset;
}

// Scratch is as long as what was last put there.
DEVICE void put_bytes(const Stage& stage, const Place& place, u64 bytes) {
    if (place.space == SCRATCH) {
        stage.lengths[place.index] = bytes;
    }
}

// Bytes that a step between these places moves: the caller's buffers decide, else scratch.
DEVICE u64 common_bytes(const Stage& stage, const Place* places, u32 count) {
    const Place* scratch = nullptr;
#pragma unroll 1
    for (u32 index = 0; index < count; index++) {
        if (is_callers(places[index])) {
            return bytes_of(stage, places[index]);
        }
        scratch = !scratch && places[index].space == SCRATCH ? places + index : scratch;
    }
    return scratch ? bytes_of(stage, *scratch) : 0;
}
