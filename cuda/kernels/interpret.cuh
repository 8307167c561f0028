// Executes one lane program of a rank's program on one channel, slice by slice, by all threads of a
// block.
#pragma once

#include "build_work.cuh"
#include "ll_reduce.cuh"
#include "group.cuh"

// Moves the data of the descriptor. Run by all threads.
template <class E>
DEVICE bool clear(const KernelContext& context, const Instr& instr, const WorkDesc& work, bool lines) {
    if (!lines) {
        run_work<E>(work);
        return true;
    }
    WaitContext waiter = wait_context(context, instr.peer, work.lines.arrived_step);
    if (is_ll128(context.args.protocol)) {
        return run_ll_work<E, Ll128Line>(work, context.args.one, waiter);
    }
    return run_ll_work<E, LlLine>(work, context.args.one, waiter);
}

// Waits, and builds the descriptor. One thread does so for a message, copy or reduction. Each
// thread does so for some instructions of a group.
DEVICE bool prepare(WorkDesc& work, const KernelContext& context, const Instr* instrs, MessageState& message) {
    if (is_group(*instrs)) {
        return wait_group(context, instrs) && (build_group_work(work, context, instrs), true);
    }
    if (threadIdx.x != 0) {
        return true;
    }
    if (is_local(*instrs)) {
        return build_local_work(work, context, *instrs), true;
    }
    return open_message(context, *instrs, message) && (build_message_work(work, context, *instrs, 0, message), true);
}

// Executes one instruction or group. Returns false after giving up. The message state belongs to
// one thread, and is in shared memory to save registers.
template <class E>
DEVICE bool move(const KernelContext& context, const Instr* instrs, WorkDesc& work, MessageState& message) {
    bool is_message = !is_group(*instrs) && !is_local(*instrs);
    bool lines = is_message && context.args.protocol != SIMPLE;
    if (is_message && threadIdx.x == 0) {
        message = {};
    }
    bool ready = prepare(work, context, instrs, message);
    for (u32 first = PASSES_IN_FLIGHT;; first += PASSES_IN_FLIGHT) {
        if (!__syncthreads_and(ready)) {
            return false;
        }
        bool moved = clear<E>(context, *instrs, work, lines);
        if (!__syncthreads_and(moved)) {
            return false;
        }
        if (!is_message || first >= instrs->operands) {
            break;
        }
        // The rest of a message of many blocks.
        if (threadIdx.x == 0) {
            build_message_work(work, context, *instrs, first, message);
        }
    }
    if (is_message && threadIdx.x == 0) {
        close_message(context, *instrs, message);
    }
    return true;
}

template <class E>
DEVICE bool run_slice(KernelContext& context, const LaneProgram& lane_program, WorkDesc& work, MessageState& message) {
    const Instr* instrs = context.args.instrs + lane_program.first_instr;
#pragma unroll 1
    for (context.instr = 0; context.instr < lane_program.instr_count; context.instr += group_size(instrs[context.instr])) {
        const Instr* instr = instrs + context.instr;
        if (instr->opcode == SIGNAL) {
            signal(context);
        } else if (!move<E>(context, instr, work, message)) {
            return false;
        }
    }
    return true;
}

template <class E>
DEVICE bool run_slices(KernelContext& context, const LaneProgram& lane_program, WorkDesc& work, MessageState& message) {
    bool uses_parity = context.args.uses_window != 0;
#pragma unroll 1
    for (context.slice = context.channel; context.slice < context.args.slices; context.slice += context.args.channels) {
        context.signals = 0;
        if ((uses_parity && !enter_parity(context)) || !run_slice<E>(context, lane_program, work, message)) {
            return false;
        }
        if (uses_parity) {
            leave_parity(context);
        }
    }
    return true;
}

template <class E>
DEVICE void interpret(const ScheduleArgs& args, WorkDesc& work, MessageState& message) {
    u32 channel = blockIdx.x / args.lane_program_count;
    const LaneProgram& lane_program = args.lane_programs[blockIdx.x % args.lane_program_count];
    u64 blocks = u64(blockIdx.x) * args.scratch_chunks;
    KernelContext context = {args, channel, channel * LANES + lane_program.lane, 0, 0, args.window_sequences[channel], 0,
                   args.scratch + blocks * args.slice_bytes, args.lengths + blocks};
    bool ended = is_healthy(args.deadline) && run_slices<E>(context, lane_program, work, message);
    if (ended && args.uses_window != 0 && threadIdx.x == 0) {
        args.window_sequences[channel] = context.window_sequence;
    }
}
