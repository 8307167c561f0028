// The steps of a one-shot all_reduce.
#pragma once

#include "packed64.cuh"
#include "mailbox.cuh"

template <class E>
DEVICE u64 scale_packed64(u64 eight, u64 factor) {
    u64 scaled = 0;
#pragma unroll 1
    for (u32 lane = 0; lane < 8 / E::BYTES; lane++) {
        scaled |= lane_bits<E>(PreMulSum::before<E>(lane_of<E>(eight, lane), factor), lane);
    }
    return scaled;
}

// A line of what this rank has, multiplied by its factor if there is one.
template <class E, class L>
DEVICE LinePayload<L> own_content(const OneShotState<L>& shot, u64 line) {
    u64 at = line * DATA_BYTES<L>;
    LinePayload<L> content = load_content<E, L>(shot.args.input + shot.start + at, shot.bytes - at);
    if (shot.args.op == PRE_MUL_SUM) {
#pragma unroll 1
        for (u32 turn = 0; turn < L::WORDS64; turn++) {
            content.turn(scale_packed64<E>(content.at[0], shot.args.factor));
        }
    }
    return content;
}

// Stores what this rank has into the mailbox of `to`.
template <class E, class L>
DEVICE void send_to_mailbox(const OneShotState<L>& shot, u32 to) {
    const OneShotArgs& args = shot.args;
    L* area = area_of(shot, to, args.rank);
    u64 lines = lines_for<L>(shot.bytes);
    if (threadIdx.x == 0) {
        u64 words[MAILBOX_HEADER_WORDS] = {args.fingerprint, args.count};
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

// Elements of an 8-byte word as values, while operands are combined.
template <class E>
struct Packed64 {
    typename E::Value values[8 / E::BYTES];
};

template <class E, class O>
DEVICE void add_operand(Packed64<E>& sum, u64 operand, bool first) {
#pragma unroll
    for (u32 lane = 0; lane < 8 / E::BYTES; lane++) {
        auto value = lane_of<E>(operand, lane);
        sum.values[lane] = first ? value : O::combine(sum.values[lane], value);
    }
}

template <class E>
DEVICE void add_with_op(u32 op, Packed64<E>& sum, u64 operand, bool first) {
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
DEVICE u64 rounded(const Packed64<E>& sum, u32 op, u32 divisor) {
    u64 eight = 0;
#pragma unroll
    for (u32 lane = 0; lane < 8 / E::BYTES; lane++) {
        eight |= lane_bits<E>(op == AVG ? divide(sum.values[lane], divisor) : sum.values[lane], lane);
    }
    return eight;
}

// Ranks whose lines are looked for at once.
constexpr u32 RANKS_IN_FLIGHT = 4;

// Waits for this line of some ranks.
template <class L>
DEVICE bool wait_lines(LinePayload<L> (&data)[RANKS_IN_FLIGHT], const OneShotState<L>& shot, u32 first, u64 line) {
    PollLoop patient;
    for (;;) {
        u32 missing = NO_PEER;
#pragma unroll
        for (u32 index = 0; index < RANKS_IN_FLIGHT; index++) {
            u32 from = first + index;
            bool there = from >= shot.args.ranks ||
                         load_line(data[index], line_of(area_of(shot, shot.args.rank, from), line), shot.flag);
            missing = there ? missing : from;
        }
        if (missing == NO_PEER) {
            return true;
        }
        if (!patient.keep_polling(mailbox_waiter(shot, missing), shot.flag, 0)) {
            return false;
        }
    }
}

// The sums of a line.
template <class E, class L>
using Sums = RotatingArray<Packed64<E>, L::WORDS64>;

// Adds a line of some ranks, in their order.
template <class E, class L>
DEVICE void add_lines(Sums<E, L>& sums, LinePayload<L> (&data)[RANKS_IN_FLIGHT], const OneShotState<L>& shot, u32 first) {
#pragma unroll 1
    for (u32 turn = 0; turn < L::WORDS64; turn++) {
        Packed64<E> sum = sums.at[0];
#pragma unroll
        for (u32 index = 0; index < RANKS_IN_FLIGHT; index++) {
            if (first + index < shot.args.ranks) {
                add_with_op<E>(shot.args.op, sum, data[index].at[0], first + index == 0);
            }
            data[index].turn(0);
        }
        sums.turn(sum);
    }
}

// Combines one line of all ranks into one of the output.
template <class E, class L>
DEVICE bool reduce_line(const OneShotState<L>& shot, u64 line) {
    Sums<E, L> sums = {};
#pragma unroll 1
    for (u32 first = 0; first < shot.args.ranks; first += RANKS_IN_FLIGHT) {
        LinePayload<L> data[RANKS_IN_FLIGHT];
        if (!wait_lines(data, shot, first, line)) {
            return false;
        }
        add_lines<E, L>(sums, data, shot, first);
    }
    LinePayload<L> result = {};
#pragma unroll 1
    for (u32 turn = 0; turn < L::WORDS64; turn++) {
        result.turn(rounded(sums.at[0], shot.args.op, shot.args.divisor));
        sums.turn({});
    }
    u64 at = line * DATA_BYTES<L>;
    store_content<E, L>(shot.args.output + shot.start + at, shot.bytes - at, result);
    return true;
}

// Waits for a rank's header, and compares its operation.
template <class L>
DEVICE bool check_peer_agrees(const OneShotState<L>& shot, u32 from) {
    const L* area = area_of(shot, shot.args.rank, from);
    MailboxWaiter waiter = mailbox_waiter(shot, from);
    u64 words[MAILBOX_HEADER_WORDS];
    if (!wait_words(words, area, shot.flag, waiter)) {
        return false;
    }
    if (words[0] != shot.args.fingerprint || words[1] != shot.args.count) {
        waiter.remote_tag[0] = words[0];
        waiter.remote_tag[1] = words[1];
        report_failure(waiter, MISMATCH, 0, 0);
        return false;
    }
    return true;
}

// Combines the data of all ranks. Run by all threads: each has lines of its own, so that the output
// may be the input.
template <class E, class L>
DEVICE bool gather(const OneShotState<L>& shot) {
    bool there = true;
#pragma unroll 1
    for (u32 from = threadIdx.x; from < shot.args.ranks && there; from += blockDim.x) {
        there = check_peer_agrees(shot, from);
    }
#pragma unroll 1
    for (u64 line = threadIdx.x; line * DATA_BYTES<L> < shot.bytes && there; line += blockDim.x) {
        there = reduce_line<E>(shot, line);
    }
    return __syncthreads_and(there);
}

template <class E, class L>
DEVICE void one_shot_by(const OneShotArgs& args) {
    u64 launch = args.launches[blockIdx.x];
    u64 start = blockIdx.x * args.block_bytes, left = args.bytes - start;
    OneShotState<L> shot = {args, launch, flag_of(launch), start, left < args.block_bytes ? left : args.block_bytes};
#pragma unroll 1
    for (u32 hop = 0; hop < args.ranks; hop++) {
        // Ranks begin with different peers.
        send_to_mailbox<E>(shot, (args.rank + hop) % args.ranks);
    }
    if (gather<E>(shot) && threadIdx.x == 0) {
        args.launches[blockIdx.x] = launch + 1;
    }
}

template <class E>
DEVICE void one_shot(const OneShotArgs& args) {
    if (!is_healthy(args.deadline)) {
        return;
    }
    if (is_ll128(args.protocol)) {
        return one_shot_by<E, Ll128Line>(args);
    }
    one_shot_by<E, LlLine>(args);
}
