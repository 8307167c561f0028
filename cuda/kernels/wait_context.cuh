// The waiter of a schedule, and its report to the host after giving up.
#pragma once

#include "chunks.cuh"
#include "wait.cuh"

// Words of a tag, in the order of comparison: sequence number (which is not compared), kind, count,
// slice.
constexpr u32 TAG_WORDS = 4;

// The words that all ranks must agree on, with the number of the operation.
DEVICE u64 tag_word(const KernelContext& context, u32 index) {
    const ScheduleArgs& args = context.args;
    u64 slice = context.slice | (args.slice_bytes / 64) << 32;
    return index == 0 ? args.sequence : index == 1 ? args.fingerprint : index == 2 ? args.count : slice;
}

// Returns true if the tag is the same, except for the sequence number: that only counts earlier
// operations.
DEVICE bool is_same_tag(const KernelContext& context, const u64 (&tag)[TAG_WORDS]) {
    bool same = true;
#pragma unroll
    for (u32 index = 1; index < TAG_WORDS; index++) {
        same = same && tag[index] == tag_word(context, index);
    }
    return same;
}

struct WaitContext {
    const KernelContext& context;
    const Deadline& deadline;
    u32 peer;
    u64 step;
    u32 instr;

    DEVICE bool has_finalized() const { return is_finalized(context.args.finalized, peer); }

    DEVICE void describe(WaitReport* status) const {
        status->rank = context.args.rank;
        status->peer = peer;
        status->step = u32(step);
        status->instr = instr;
        status->lane = context.lane;
#pragma unroll
        for (u32 index = 0; index < TAG_WORDS; index++) {
            status->local_tag[index] = tag_word(context, index);
        }
    }
};

DEVICE WaitContext wait_context(const KernelContext& context, u32 peer, u64 step) {
    return {context, context.args.deadline, peer, step, context.instr};
}

// A waiter whose peer runs another operation.
struct MismatchContext : WaitContext {
    const u64 (&remote_tag)[TAG_WORDS];

    DEVICE void describe(WaitReport* status) const {
        WaitContext::describe(status);
#pragma unroll
        for (u32 index = 0; index < TAG_WORDS; index++) {
            status->remote_tag[index] = remote_tag[index];
        }
    }
};

// Tells the host that the peer is doing something else, or something of another length.
DEVICE bool report_mismatch(const WaitContext& wait_context, WaitState why, const u64 (&remote_tag)[TAG_WORDS], u64 wanted, u64 seen) {
    report_failure(MismatchContext{wait_context, remote_tag}, why, wanted, seen);
    return false;
}
