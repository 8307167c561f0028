// Waits and copies that are done at once, as nothing of them touches another: each thread waits for, or lays out, some of
// them, and all copy. The host says which (`Act::group`).
#pragma once

#include "lay_out.cuh"
#include "windows.cuh"

DEVICE bool is_local(const Act& act) { return act.verb == COPY || act.verb == REDUCE; }

// Acts that are done with this one.
DEVICE u32 width_of(const Act& act) { return act.together > 1 ? act.together : 1; }

DEVICE bool is_group(const Act& act) { return act.verb == WAIT || act.together > 1; }

// All waits, before any copy: no peer waits for these copies, as signals come later.
DEVICE bool wait_together(const Stage& stage, const Act* acts) {
    bool there = true;
#pragma unroll 1
    for (u32 index = threadIdx.x; index < width_of(*acts) && there; index += blockDim.x) {
        there = acts[index].verb != WAIT || wait_signal(stage, acts[index], stage.act + index);
    }
    return there;
}

// A pass for each act; that of a wait, and of what is where it should be, has no bytes.
DEVICE void lay_out_pass(Desk& desk, const Stage& stage, const Act& act, u32 index) {
    const Place* places = stage.args.places + act.first_place;
    desk.bytes[index] = 0;
    if (act.verb == WAIT) {
        return;
    }
    u64 bytes = common_bytes(stage, places, 2);
    desk.factors[index] = factor_of(stage, places[0]);
    desk.sources[index] = address_of(stage, places[0]);
    desk.targets[index] = address_of(stage, places[1]);
    put_bytes(stage, places[1], bytes);
    desk.bytes[index] = bytes;
}

DEVICE void lay_out_together(Desk& desk, const Stage& stage, const Act* acts) {
    u32 count = width_of(*acts);
    bool scaled = false;
#pragma unroll 1
    for (u32 index = threadIdx.x; index < count; index += blockDim.x) {
        lay_out_pass(desk, stage, acts[index], index);
    }
    if (threadIdx.x != 0) {
        return;
    }
#pragma unroll 1
    for (u32 index = 0; index < count; index++) {
        scaled = scaled || (acts[index].verb == COPY && stage.args.places[acts[index].first_place].space == INPUT);
    }
    desk.source_count = desk.target_count = 1;
    desk.passes = count;
    set_how(desk, stage.args, scaled, false);
}
