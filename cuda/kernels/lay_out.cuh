// Lays out on the desk what an act moves. Done by one thread of a block.
#pragma once

#include "desk.cuh"
#include "message.cuh"

DEVICE u64 factor_of(const Stage& stage, const Place& place) {
    return place.space == INPUT ? stage.args.factor : stage.args.one;
}

// Passes of a message laid out at once: each has two sources and two targets at most.
constexpr u32 PASSES_ABREAST = OPERANDS_MAX / 2;

// From one block of a message to the next.
DEVICE u64 slot_bytes(u64 bytes) { return (bytes + sizeof(Words) - 1) / sizeof(Words) * sizeof(Words); }

// One more pass, of a message in slots: from `own` (null: none) and what arrived, to `into` (null: none) and what leaves.
DEVICE void add_pass(Desk& desk, const Stage& stage, const Place* own, const Place* into, const Message& message) {
    u32 source = desk.passes * desk.source_count, target = desk.passes * desk.target_count;
    if (own) {
        desk.factors[source] = factor_of(stage, *own);
        desk.sources[source++] = address_of(stage, *own);
    }
    if (message.arrived) {
        desk.factors[source] = stage.args.one;
        desk.sources[source] = message.arrived + message.offset;
    }
    if (into) {
        desk.targets[target++] = address_of(stage, *into);
    }
    if (message.leaving) {
        desk.targets[target] = message.leaving + message.offset;
    }
}

// The same of a message in lines.
DEVICE void add_line_pass(Desk& desk, const Stage& stage, const Place* own, const Place* into) {
    desk.sources[desk.passes] = own ? address_of(stage, *own) : nullptr;
    desk.factors[desk.passes] = own ? factor_of(stage, *own) : stage.args.one;
    desk.targets[desk.passes] = into ? address_of(stage, *into) : nullptr;
}

// The next blocks of a message, from `first` on.
DEVICE void lay_out_message(Desk& desk, const Stage& stage, const Act& act, u32 first, Message& message) {
    const Place* places = stage.args.places + act.first_place;
    bool reads = act.verb != RECV, writes = act.verb != SEND;
    u32 last = first + PASSES_ABREAST < act.operands ? first + PASSES_ABREAST : act.operands;
    bool lines = stage.args.protocol != SLOTS, scaled = false;
    desk.lines = {message.arrived, message.leaving, message.offset, message.arrived_step, message.leaving_step,
                  last == act.operands ? message.refresh : 0};
    desk.passes = 0;
    desk.source_count = (reads ? 1 : 0) + (message.arrived ? 1 : 0);
    desk.target_count = (writes ? 1 : 0) + (message.leaving ? 1 : 0);
#pragma unroll 1
    for (u32 index = first; index < last; index++) {
        const Place* place = places + index;
        bool told = act.verb == RECV && !is_callers(*place);
        u64 bytes = told ? message.each : bytes_of(stage, *place);
        const Place* into = act.verb == RECV_REDUCE ? place + act.operands : writes ? place : nullptr;
        scaled = scaled || (reads && place->space == INPUT);
        if (lines) {
            add_line_pass(desk, stage, reads ? place : nullptr, into);
        } else {
            add_pass(desk, stage, reads ? place : nullptr, into, message);
        }
        if (into) {
            put_bytes(stage, *into, bytes);
        }
        desk.bytes[desk.passes++] = bytes;
        message.offset += lines ? line_bytes(stage.args.protocol, bytes) : slot_bytes(bytes);
    }
    set_how(desk, stage.args, scaled, act.finish != 0);
}

// A copy or a reduction within this rank, or from and to windows: one pass.
DEVICE void lay_out_local(Desk& desk, const Stage& stage, const Act& act) {
    const Place* places = stage.args.places + act.first_place;
    bool scaled = false;
    u64 bytes = common_bytes(stage, places, act.operands + act.targets);
#pragma unroll 1
    for (u32 index = 0; index < act.operands; index++) {
        scaled = scaled || places[index].space == INPUT;
        desk.factors[index] = factor_of(stage, places[index]);
        desk.sources[index] = address_of(stage, places[index]);
    }
#pragma unroll 1
    for (u32 index = 0; index < act.targets; index++) {
        desk.targets[index] = address_of(stage, places[act.operands + index]);
        put_bytes(stage, places[act.operands + index], bytes);
    }
    desk.bytes[0] = bytes;
    desk.source_count = act.operands;
    desk.target_count = act.targets;
    set_how(desk, stage.args, scaled, act.finish != 0);
    // What is where it should be stays there.
    bool stays = desk.how == AS_IT_IS && act.targets == 1 && desk.sources[0] == desk.targets[0];
    desk.passes = stays ? 0 : 1;
}
