// The passes of messages in lines: what arrives is combined and stored, and goes on, as soon as it is there. By all
// threads of a block; none waits for another.
#pragma once

#include "desk.cuh"
#include "doer.cuh"
#include "eight.cuh"

// Where a pass reads and writes; null where it does not.
struct LinePass {
    const u8* own;
    const u8* arrived;
    u8* into;
    u8* leaving;
    u64 bytes;
    u64 factor;
    u64 one;
    u32 how;
    u32 divisor;
};

// Elements of eight bytes that are worked on together: small ones have long conversions.
template <class E>
constexpr u32 LANES_ABREAST = E::BYTES == 1 ? 1 : 8 / E::BYTES;

template <class E, class O>
DEVICE u64 fold_eight(const LinePass& pass, u64 own, u64 arrived) {
    u64 eight = 0;
#pragma unroll LANES_ABREAST<E>
    for (u32 lane = 0; lane < 8 / E::BYTES; lane++) {
        auto theirs = O::template before<E>(lane_of<E>(arrived, lane), pass.one);
        auto value = pass.own ? O::template before<E>(lane_of<E>(own, lane), pass.factor) : theirs;
        value = pass.own && pass.arrived ? O::combine(value, theirs) : value;
        eight |= lane_bits<E>(O::after(value, pass.divisor), lane);
    }
    return eight;
}

// What becomes of eight bytes of the operands that there are.
template <class E>
DEVICE u64 result_of(const LinePass& pass, u64 own, u64 arrived) {
    switch (pass.how) {
    case SUM:
        return fold_eight<E, SumOrAvg>(pass, own, arrived);
    case PROD:
        return fold_eight<E, Prod>(pass, own, arrived);
    case MIN:
        return fold_eight<E, Min>(pass, own, arrived);
    case MAX:
        return fold_eight<E, Max>(pass, own, arrived);
    case PRE_MUL_SUM:
        return fold_eight<E, PreMulSum>(pass, own, arrived);
    default:
        return pass.own ? own : arrived;
    }
}

// What becomes of a line of each.
template <class E, class L>
DEVICE Content<L> result_of_line(const LinePass& pass, Content<L> own, Content<L> arrived) {
#pragma unroll 1
    for (u32 turn = 0; turn < L::EIGHTS; turn++) {
        arrived.turn(result_of<E>(pass, own.at[0], arrived.at[0]));
        own.turn(0);
    }
    return arrived;
}

// One pass. False: the wait for a line was given up.
template <class E, class L>
DEVICE bool pass_lines(const LinePass& pass, const LinesAtHand& steps, const Doer& waiter) {
    u32 arrived_flag = flag_of(steps.arrived_step), leaving_flag = flag_of(steps.leaving_step);
    const L* incoming = (const L*)pass.arrived;
    L* outgoing = (L*)pass.leaving;
#pragma unroll 1
    for (u64 line = threadIdx.x; line * DATA_BYTES<L> < pass.bytes; line += blockDim.x) {
        u64 at = line * DATA_BYTES<L>;
        Content<L> own = {}, arrived = {};
        if (pass.own) {
            own = load_content<E, L>(pass.own + at, pass.bytes - at);
        }
        if (incoming && !wait_line(arrived, incoming + line, arrived_flag, waiter)) {
            return false;
        }
        Content<L> result = result_of_line<E, L>(pass, own, arrived);
        if (outgoing) {
            store_line(outgoing + line, result, leaving_flag);
        }
        if (pass.into) {
            store_content<E, L>(pass.into + at, pass.bytes - at, result);
        }
    }
    return true;
}

// Does all passes of the desk.
template <class E, class L>
DEVICE bool clear_lines(const Desk& desk, u64 one, const Doer& waiter) {
    const LinesAtHand& lines = desk.lines;
    u64 offset = lines.offset;
    bool there = true;
#pragma unroll 1
    for (u32 index = 0; index < desk.passes && there; index++) {
        LinePass pass = {desk.sources[index],
                         lines.arrived ? lines.arrived + offset : nullptr,
                         desk.targets[index],
                         lines.leaving ? lines.leaving + offset : nullptr,
                         desk.bytes[index],
                         desk.factors[index],
                         one,
                         desk.how,
                         desk.divisor};
        there = pass_lines<E, L>(pass, lines, waiter);
        offset += lines_for<L>(pass.bytes) * sizeof(L);
    }
    if (lines.leaving) {
        u64 first = offset / sizeof(L), last = lines.refresh / sizeof(L);
        refresh_lines((L*)lines.leaving, first, last, flag_of(lines.leaving_step));
    }
    return there;
}
