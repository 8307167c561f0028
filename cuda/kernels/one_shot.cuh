// The steps of a one-shot all_reduce.
#pragma once

#include "eight.cuh"
#include "mailbox.cuh"

template <class E>
DEVICE u64 scaled_eight(u64 eight, u64 factor) {
    u64 scaled = 0;
#pragma unroll 1
    for (u32 lane = 0; lane < 8 / E::BYTES; lane++) {
        scaled |= lane_bits<E>(PreMulSum::before<E>(lane_of<E>(eight, lane), factor), lane);
    }
    return scaled;
}

// A line of what this rank has, multiplied by its factor if there is one.
template <class E, class L>
DEVICE Content<L> own_content(const Shot<L>& shot, u64 line) {
    u64 at = line * DATA_BYTES<L>;
    Content<L> content = load_content<E, L>(shot.args.input + shot.start + at, shot.bytes - at);
    if (shot.args.op == PRE_MUL_SUM) {
#pragma unroll 1
        for (u32 turn = 0; turn < L::EIGHTS; turn++) {
            content.turn(scaled_eight<E>(content.at[0], shot.args.factor));
        }
    }
    return content;
}

// Stores what this rank has into the mailbox of `to`.
template <class E, class L>
DEVICE void shoot(const Shot<L>& shot, u32 to) {
    const OneShot& args = shot.args;
    L* area = area_of(shot, to, args.rank);
    u64 lines = lines_for<L>(shot.bytes);
    if (threadIdx.x == 0) {
        u64 words[SHOT_WORDS] = {args.what, args.count};
        store_words(area, words, shot.flag);
    }
#pragma unroll 1
    for (u64 line = threadIdx.x; line < lines; line += blockDim.x) {
        store_line(line_of(area, line), own_content<E>(shot, line), shot.flag);
    }
    // Two areas take turns.
    if (refreshes(shot.launch, 2)) {
        refresh_lines(line_of(area, 0), lines, lines_for<L>(args.block_bytes), shot.flag);
    }
}

// Elements of eight bytes as values, while operands are added.
template <class E>
struct Eight {
    typename E::Value values[8 / E::BYTES];
};

template <class E, class O>
DEVICE void add_operand(Eight<E>& sum, u64 operand, bool first) {
#pragma unroll
    for (u32 lane = 0; lane < 8 / E::BYTES; lane++) {
        auto value = lane_of<E>(operand, lane);
        sum.values[lane] = first ? value : O::combine(sum.values[lane], value);
    }
}

template <class E>
DEVICE void add_by(u32 op, Eight<E>& sum, u64 operand, bool first) {
    switch (op) {
    case PROD:
        return add_operand<E, Prod>(sum, operand, first);
    case MIN:
        return add_operand<E, Min>(sum, operand, first);
    case MAX:
        return add_operand<E, Max>(sum, operand, first);
    default:
        return add_operand<E, Sum>(sum, operand, first);
    }
}

template <class E>
DEVICE u64 rounded(const Eight<E>& sum, u32 op, u32 divisor) {
    u64 eight = 0;
#pragma unroll
    for (u32 lane = 0; lane < 8 / E::BYTES; lane++) {
        eight |= lane_bits<E>(op == AVG ? divide(sum.values[lane], divisor) : sum.values[lane], lane);
    }
    return eight;
}

// Ranks whose lines are looked for at once.
constexpr u32 RANKS_ABREAST = 4;

// Waits for this line of some ranks.
template <class L>
DEVICE bool wait_lines(Content<L> (&data)[RANKS_ABREAST], const Shot<L>& shot, u32 first, u64 line) {
    Patient patient;
    for (;;) {
        u32 missing = NOBODY;
#pragma unroll
        for (u32 index = 0; index < RANKS_ABREAST; index++) {
            u32 from = first + index;
            bool there = from >= shot.args.ranks ||
                         load_line(data[index], line_of(area_of(shot, shot.args.rank, from), line), shot.flag);
            missing = there ? missing : from;
        }
        if (missing == NOBODY) {
            return true;
        }
        if (!patient.goes_on(addressee(shot, missing), shot.flag, 0)) {
            return false;
        }
    }
}

// The sums of a line.
template <class E, class L>
using Sums = Turns<Eight<E>, L::EIGHTS>;

// Adds a line of some ranks, in their order.
template <class E, class L>
DEVICE void add_lines(Sums<E, L>& sums, Content<L> (&data)[RANKS_ABREAST], const Shot<L>& shot, u32 first) {
#pragma unroll 1
    for (u32 turn = 0; turn < L::EIGHTS; turn++) {
        Eight<E> sum = sums.at[0];
#pragma unroll
        for (u32 index = 0; index < RANKS_ABREAST; index++) {
            if (first + index < shot.args.ranks) {
                add_by<E>(shot.args.op, sum, data[index].at[0], first + index == 0);
            }
            data[index].turn(0);
        }
        sums.turn(sum);
    }
}

// One line of all ranks becomes one of the output.
template <class E, class L>
DEVICE bool reduce_line(const Shot<L>& shot, u64 line) {
    Sums<E, L> sums = {};
#pragma unroll 1
    for (u32 first = 0; first < shot.args.ranks; first += RANKS_ABREAST) {
        Content<L> data[RANKS_ABREAST];
        if (!wait_lines(data, shot, first, line)) {
            return false;
        }
        add_lines<E, L>(sums, data, shot, first);
    }
    Content<L> result = {};
#pragma unroll 1
    for (u32 turn = 0; turn < L::EIGHTS; turn++) {
        result.turn(rounded(sums.at[0], shot.args.op, shot.args.divisor));
        sums.turn({});
    }
    u64 at = line * DATA_BYTES<L>;
    store_content<E, L>(shot.args.output + shot.start + at, shot.bytes - at, result);
    return true;
}

// Whether a rank has come, and does the same.
template <class L>
DEVICE bool is_of_one_mind(const Shot<L>& shot, u32 from) {
    const L* area = area_of(shot, shot.args.rank, from);
    Addressee waiter = addressee(shot, from);
    u64 words[SHOT_WORDS];
    if (!wait_words(words, area, shot.flag, waiter)) {
        return false;
    }
    if (words[0] != shot.args.what || words[1] != shot.args.count) {
        waiter.theirs[0] = words[0];
        waiter.theirs[1] = words[1];
        give_up(waiter, MISMATCH, 0, 0);
        return false;
    }
    return true;
}

// What all ranks have sent. By all threads: each has lines of its own, so that the output may be the input.
template <class E, class L>
DEVICE bool gather(const Shot<L>& shot) {
    bool there = true;
#pragma unroll 1
    for (u32 from = threadIdx.x; from < shot.args.ranks && there; from += blockDim.x) {
        there = is_of_one_mind(shot, from);
    }
#pragma unroll 1
    for (u64 line = threadIdx.x; line * DATA_BYTES<L> < shot.bytes && there; line += blockDim.x) {
        there = reduce_line<E>(shot, line);
    }
    return __syncthreads_and(there);
}

template <class E, class L>
DEVICE void one_shot_by(const OneShot& args) {
    u64 launch = args.launches[blockIdx.x];
    u64 start = blockIdx.x * args.block_bytes, left = args.bytes - start;
    Shot<L> shot = {args, launch, flag_of(launch), start, left < args.block_bytes ? left : args.block_bytes};
#pragma unroll 1
    for (u32 hop = 0; hop < args.ranks; hop++) {
        // Not everybody to the same rank first.
        shoot<E>(shot, (args.rank + hop) % args.ranks);
    }
    if (gather<E>(shot) && threadIdx.x == 0) {
        args.launches[blockIdx.x] = launch + 1;
    }
}

template <class E>
DEVICE void one_shot(const OneShot& args) {
    if (!is_sound(args.patience)) {
        return;
    }
    if (is_wide(args.protocol)) {
        return one_shot_by<E, WideLine>(args);
    }
    one_shot_by<E, NarrowLine>(args);
}
