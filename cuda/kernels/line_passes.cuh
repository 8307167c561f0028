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

// One pass. False: the wait for a line was given up.
template <class E>
DEVICE bool pass_lines(const LinePass& pass, const LinesAtHand& steps, const Doer& waiter) {
    u32 arrived_flag = flag_of(steps.arrived_step), leaving_flag = flag_of(steps.leaving_step);
#pragma unroll 1
    for (u64 line = threadIdx.x; line * LINE_DATA_BYTES < pass.bytes; line += blockDim.x) {
        u64 at = line * LINE_DATA_BYTES, own = 0, arrived = 0;
        if (pass.own) {
            own = load_eight<E>(pass.own + at, pass.bytes - at);
        }
        if (pass.arrived && !wait_line(arrived, pass.arrived + line * LINE_BYTES, arrived_flag, waiter)) {
            return false;
        }
        u64 result = result_of<E>(pass, own, arrived);
        if (pass.leaving) {
            store_line(pass.leaving + line * LINE_BYTES, result, leaving_flag);
        }
        if (pass.into) {
            store_eight<E>(pass.into + at, pass.bytes - at, result);
        }
    }
    return true;
}

// Does all passes of the desk.
template <class E>
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
        there = pass_lines<E>(pass, lines, waiter);
        offset += line_bytes(pass.bytes);
    }
    if (lines.leaving) {
        refresh_lines(lines.leaving, offset / LINE_BYTES, lines.refresh / LINE_BYTES, flag_of(lines.leaving_step));
    }
    return there;
}
