// Mailboxes of one-shot collectives. Blocks are independent: each has its part of the buffer, its
// area of every mailbox, and its own launch count, from which flags are made. Launches alternate
// between two areas. A rank that begins a launch has seen all ranks begin the launch before, and so
// end the one before that.
#pragma once

#include "ll.cuh"
#include "schedule_arguments.cuh"

// Kind and count of elements of a launch.
constexpr u32 MAILBOX_HEADER_WORDS = 2;

// A thread that waits for a rank's lines.
struct MailboxWaiter {
    const OneShotArgs& args;
    const Deadline& deadline;
    u32 peer;
    u64 launch;
    // Operation of the peer, where it is known.
    u64 remote_tag[MAILBOX_HEADER_WORDS];

    DEVICE bool has_finalized() const { return is_finalized(args.finalized, peer); }

    DEVICE void describe(WaitReport* status) const {
        status->rank = args.rank;
        status->peer = peer;
        status->step = u32(launch);
        status->instr = ~0u;
        status->local_tag[0] = args.sequence;
        status->local_tag[1] = args.fingerprint;
        status->local_tag[2] = args.count;
        status->remote_tag[1] = remote_tag[0];
        status->remote_tag[2] = remote_tag[1];
    }
};

// One block's work, with lines of this form.
template <class L>
struct OneShotState {
    const OneShotArgs& args;
    u64 launch;
    u32 flag;
    // Start of the block's part in the buffer.
    u64 start;
    u64 bytes;
};

template <class L>
DEVICE MailboxWaiter mailbox_waiter(const OneShotState<L>& shot, u32 peer) {
    return {shot.args, shot.args.deadline, peer, shot.launch, {0, 0}};
}

// The lines that `from` stores for this block into the mailbox of `to`.
template <class L>
DEVICE L* area_of(const OneShotState<L>& shot, u32 to, u32 from) {
    u64 area_bytes = HEADER_BYTES + lines_for<L>(shot.args.block_bytes) * sizeof(L);
    u64 row = (shot.launch & 1) * shot.args.ranks + from;
    return (L*)(shot.args.mailboxes[to] + (row * shot.args.blocks_max + blockIdx.x) * area_bytes);
}

// A line of data, behind the header.
template <class L>
DEVICE L* line_of(L* area, u64 line) {
    return area + HEADER_BYTES / sizeof(L) + line;
}
