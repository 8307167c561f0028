// Carries out one strand of a rank's program on one channel, piece by piece, by all threads of a block.
#pragma once

#include "lay_out.cuh"
#include "line_passes.cuh"
#include "together.cuh"

// Moves what is on the desk. By all threads.
template <class E>
DEVICE bool clear(const Stage& stage, const Act& act, const Desk& desk, bool lines) {
    if (!lines) {
        clear_desk<E>(desk);
        return true;
    }
    Doer waiter = doer(stage, act.peer, desk.lines.arrived_step);
    if (is_wide(stage.args.protocol)) {
        return clear_lines<E, WideLine>(desk, stage.args.one, waiter);
    }
    return clear_lines<E, NarrowLine>(desk, stage.args.one, waiter);
}

// Waits and lays out: for a message, copy or reduction one thread does, for acts together each thread does some of them.
DEVICE bool prepare(Desk& desk, const Stage& stage, const Act* acts, Message& message) {
    if (is_group(*acts)) {
        return wait_together(stage, acts) && (lay_out_together(desk, stage, acts), true);
    }
    if (threadIdx.x != 0) {
        return true;
    }
    if (is_local(*acts)) {
        return lay_out_local(desk, stage, *acts), true;
    }
    return open_message(stage, *acts, message) && (lay_out_message(desk, stage, *acts, 0, message), true);
}

// One act, or some together. False: given up. The message is one thread's, and lies in shared memory as registers are few.
template <class E>
DEVICE bool move(const Stage& stage, const Act* acts, Desk& desk, Message& message) {
    bool message_act = !is_group(*acts) && !is_local(*acts);
    bool lines = message_act && stage.args.protocol != SLOTS;
    if (message_act && threadIdx.x == 0) {
        message = {};
    }
    bool ready = prepare(desk, stage, acts, message);
    for (u32 first = PASSES_ABREAST;; first += PASSES_ABREAST) {
        if (!__syncthreads_and(ready)) {
            return false;
        }
        bool moved = clear<E>(stage, *acts, desk, lines);
        if (!__syncthreads_and(moved)) {
            return false;
        }
        if (!message_act || first >= acts->operands) {
            break;
        }
        // The rest of a message of many blocks.
        if (threadIdx.x == 0) {
            lay_out_message(desk, stage, *acts, first, message);
        }
    }
    if (message_act && threadIdx.x == 0) {
        close_message(stage, *acts, message);
    }
    return true;
}

template <class E>
DEVICE bool run_piece(Stage& stage, const Strand& strand, Desk& desk, Message& message) {
    const Act* acts = stage.args.acts + strand.first_act;
#pragma unroll 1
    for (stage.act = 0; stage.act < strand.acts; stage.act += width_of(acts[stage.act])) {
        const Act* act = acts + stage.act;
        if (act->verb == SIGNAL) {
            signal(stage);
        } else if (!move<E>(stage, act, desk, message)) {
            return false;
        }
    }
    return true;
}

template <class E>
DEVICE bool run_pieces(Stage& stage, const Strand& strand, Desk& desk, Message& message) {
    bool banks = stage.args.uses_window != 0;
#pragma unroll 1
    for (stage.piece = stage.channel; stage.piece < stage.args.pieces; stage.piece += stage.args.channels) {
        stage.signals = 0;
        if ((banks && !enter_bank(stage)) || !run_piece<E>(stage, strand, desk, message)) {
            return false;
        }
        if (banks) {
            leave_bank(stage);
        }
    }
    return true;
}

template <class E>
DEVICE void interpret(const Interpret& args, Desk& desk, Message& message) {
    u32 channel = blockIdx.x / args.strand_count;
    const Strand& strand = args.strands[blockIdx.x % args.strand_count];
    u64 blocks = u64(blockIdx.x) * args.scratch_blocks;
    Stage stage = {args, channel, channel * LANES + strand.lane, 0, 0, args.instances[channel], 0,
                   args.scratch + blocks * args.slice_bytes, args.lengths + blocks};
    bool ended = is_sound(args.patience) && run_pieces<E>(stage, strand, desk, message);
    if (ended && args.uses_window != 0 && threadIdx.x == 0) {
        args.instances[channel] = stage.instance;
    }
}
