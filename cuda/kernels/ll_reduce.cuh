// Passes over messages in LL lines: each line is combined, stored and sent on as soon as it
// arrives. Run by all threads of a block. No thread waits for another.
#pragma once

#include "work.cuh"
#include "wait_context.cuh"
#include "packed64.cuh"

// Sources and targets of a pass, null where there is none.
struct LinePass {
    const u8* own;
    const u8* arrived;
    u8* into;
    u8* leaving;
    u64 bytes;
    u64 factor;
    u64 one;
    u32 op;
    u32 divisor;
};

// 8-byte words that are processed together. Narrow types have long conversions.
template <class E>
constexpr u32 LANES_UNROLLED = E::BYTES == 1 ? 1 : 8 / E::BYTES;

template <class E, class O>
DEVICE u64 reduce_packed64(const LinePass& pass, u64 own, u64 arrived) {
    u64 eight = 0;
#pragma unroll LANES_UNROLLED<E>
    for (u32 lane = 0; lane < 8 / E::BYTES; lane++) {
        auto remote_tag = O::template before<E>(lane_of<E>(arrived, lane), pass.one);
        auto value = pass.own ? O::template before<E>(lane_of<E>(own, lane), pass.factor) : remote_tag;
        value = pass.own && pass.arrived ? O::combine(value, remote_tag) : value;
        eight |= lane_bits<E>(O::template after<E>(value, pass.divisor), lane);
    }
    return eight;
}

// Combines 8 bytes of all operands.
template <class E>
DEVICE u64 reduce_word(const LinePass& pass, u64 own, u64 arrived) {
    switch (pass.op) {
    case SUM:
        return reduce_packed64<E, SumOrAvg>(pass, own, arrived);
    case PROD:
        return reduce_packed64<E, Prod>(pass, own, arrived);
    case MIN:
        return reduce_packed64<E, Min>(pass, own, arrived);
    case MAX:
        return reduce_packed64<E, Max>(pass, own, arrived);
    case PRE_MUL_SUM:
        return reduce_packed64<E, PreMulSumOrAvg>(pass, own, arrived);
    default:
        return pass.own ? own : arrived;
    }
}

// Combines a line of all operands.
template <class E, class L>
DEVICE LinePayload<L> reduce_ll_line(const LinePass& pass, LinePayload<L> own, LinePayload<L> arrived) {
#pragma unroll 1
    for (u32 turn = 0; turn < L::WORDS64; turn++) {
        arrived.turn(reduce_word<E>(pass, own.at[0], arrived.at[0]));
        own.turn(0);
    }
    return arrived;
}

// Runs one pass. Returns false after giving up the wait for a line.
template <class E, class L>
DEVICE bool run_ll_pass(const LinePass& pass, const LlState& steps, const WaitContext& waiter) {
    u32 arrived_flag = flag_of(steps.arrived_step), leaving_flag = flag_of(steps.leaving_step);
    const L* incoming = (const L*)pass.arrived;
    L* outgoing = (L*)pass.leaving;
#pragma unroll 1
    for (u64 line = threadIdx.x; line * DATA_BYTES<L> < pass.bytes; line += blockDim.x) {
        u64 at = line * DATA_BYTES<L>;
        LinePayload<L> own = {}, arrived = {};
        if (pass.own) {
            own = load_content<E, L>(pass.own + at, pass.bytes - at);
        }
        if (incoming && !wait_line(arrived, incoming + line, arrived_flag, waiter)) {
            return false;
        }
        LinePayload<L> result = reduce_ll_line<E, L>(pass, own, arrived);
        if (outgoing) {
            store_line(outgoing + line, result, leaving_flag);
        }
        if (pass.into) {
            store_content<E, L>(pass.into + at, pass.bytes - at, result);
        }
    }
    return true;
}

// Runs all passes of the descriptor.
template <class E, class L>
DEVICE bool run_ll_work(const WorkDesc& work, u64 one, const WaitContext& waiter) {
    const LlState& lines = work.lines;
    u64 offset = lines.offset;
    bool there = true;
#pragma unroll 1
    for (u32 index = 0; index < work.passes && there; index++) {
        LinePass pass = {work.sources[index],
                         lines.arrived ? lines.arrived + offset : nullptr,
                         work.targets[index],
                         lines.leaving ? lines.leaving + offset : nullptr,
                         work.bytes[index],
                         work.factors[index],
                         one,
                         work.op,
                         work.divisor};
        there = run_ll_pass<E, L>(pass, lines, waiter);
        offset += lines_for<L>(pass.bytes) * sizeof(L);
    }
    if (lines.leaving) {
        u64 first = offset / sizeof(L), last = lines.refresh / sizeof(L);
        refresh_lines((L*)lines.leaving, first, last, flag_of(lines.leaving_step));
    }
    return there;
}
