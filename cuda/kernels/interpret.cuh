// Carries out one strand of a rank's program on one channel, piece by piece, by all threads of a block.
#pragma once

#include "lay_out.cuh"
#include "line_passes.cuh"
#include "windows.cuh"

// Moves what is on the desk. By all threads.
template <class E>
DEVICE bool clear(const Stage& stage, const Act& act, const Desk& desk, bool lines) {
    if (lines) {
        return clear_lines<E>(desk, stage.args.one, doer(stage, act.peer, desk.lines.arrived_step));
    }
    clear_desk<E>(desk);
    return true;
}

// One message, copy or reduction: one thread waits and lays out, all move data, one hands over.
template <class E>
DEVICE bool move(const Stage& stage, const Act& act, Desk& desk) {
    bool local = act.verb == COPY || act.verb == REDUCE;
    bool lines = stage.args.protocol == LINES && !local;
    u32 blocks = local ? 1 : act.operands;
    Message message = {};
    bool ready = threadIdx.x != 0 || local || open_message(stage, act, message);
    u32 first = 0;
    do {
        if (threadIdx.x == 0 && ready) {
            local ? lay_out_local(desk, stage, act) : lay_out_message(desk, stage, act, first, message);
        }
        if (!__syncthreads_and(ready)) {
            return false;
        }
        bool moved = clear<E>(stage, act, desk, lines);
        if (!__syncthreads_and(moved)) {
            return false;
        }
        first += PASSES_ABREAST;
    } while (first < blocks);
    if (threadIdx.x == 0) {
        close_message(stage, act, message);
    }
    return true;
}

// Waits that follow one another, of which each thread takes one.
DEVICE bool wait_signals(const Stage& stage, const Act* acts, u32 count) {
    bool there = true;
#pragma unroll 1
    for (u32 index = threadIdx.x; index < count && there; index += blockDim.x) {
        there = wait_signal(stage, acts[index]);
    }
    return __syncthreads_and(there);
}

// How many of the next acts are waits.
DEVICE u32 waits_ahead(const Act* acts, u32 count) {
    u32 waits = 0;
    while (waits < count && acts[waits].verb == WAIT) {
        waits++;
    }
    return waits;
}

template <class E>
DEVICE bool run_piece(Stage& stage, const Strand& strand, Desk& desk) {
    const Act* acts = stage.args.acts + strand.first_act;
#pragma unroll 1
    for (stage.act = 0; stage.act < strand.acts; stage.act++) {
        const Act* act = acts + stage.act;
        u32 waits = waits_ahead(act, strand.acts - stage.act);
        if (waits != 0) {
            if (!wait_signals(stage, act, waits)) {
                return false;
            }
            stage.act += waits - 1;
        } else if (act->verb == SIGNAL) {
            signal(stage);
        } else if (!move<E>(stage, *act, desk)) {
            return false;
        }
    }
    return true;
}

template <class E>
DEVICE bool run_pieces(Stage& stage, const Strand& strand, Desk& desk) {
    bool banks = stage.args.uses_window != 0;
#pragma unroll 1
    for (stage.piece = stage.channel; stage.piece < stage.args.pieces; stage.piece += stage.args.channels) {
        stage.signals = 0;
        if ((banks && !enter_bank(stage)) || !run_piece<E>(stage, strand, desk)) {
            return false;
        }
        if (banks) {
            leave_bank(stage);
        }
    }
    return true;
}

// After a launch that ended early, those behind it end at once.
DEVICE bool is_sound(const Patience& patience) {
    return __syncthreads_and(threadIdx.x != 0 || !is_lost(patience));
}

template <class E>
DEVICE void interpret(const Interpret& args, Desk& desk) {
    u32 channel = blockIdx.x / args.strand_count;
    const Strand& strand = args.strands[blockIdx.x % args.strand_count];
    u64 blocks = u64(blockIdx.x) * args.scratch_blocks;
    Stage stage = {args, channel, channel * LANES + strand.lane, 0, 0, args.instances[channel], 0,
                   args.scratch + blocks * args.slice_bytes, args.lengths + blocks};
    bool ended = is_sound(args.patience) && run_pieces<E>(stage, strand, desk);
    if (ended && args.uses_window != 0 && threadIdx.x == 0) {
        args.instances[channel] = stage.instance;
    }
}
