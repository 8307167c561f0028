// Mailboxes of one-shot collectives. Blocks know nothing of each other: each has its part of the buffer and its area of every
// mailbox, and its own count of launches, of which the flags are made. An area is used by every other launch: a rank
// that begins a launch has seen all ranks begin the one before, and so end the one before that.
#pragma once

#include "lines.cuh"
#include "schedule_arguments.cuh"

// What a launch is, and of how many elements.
constexpr u32 SHOT_WORDS = 2;

// Who waits for a rank's lines.
struct Addressee {
    const OneShot& args;
    const Patience& patience;
    u32 peer;
    u64 launch;
    // What the peer is doing, where that is known.
    u64 theirs[SHOT_WORDS];

    DEVICE bool is_left() const { return has_left(args.left, peer); }

    DEVICE void describe(Status* status) const {
        status->rank = args.rank;
        status->peer = peer;
        status->step = u32(launch);
        status->act = ~0u;
        status->ours[0] = args.sequence;
        status->ours[1] = args.what;
        status->ours[2] = args.count;
        status->theirs[1] = theirs[0];
        status->theirs[2] = theirs[1];
    }
};

// What one block does, with lines of this form.
template <class L>
struct Shot {
    const OneShot& args;
    u64 launch;
    u32 flag;
    // Of the buffer.
    u64 start;
    u64 bytes;
};

template <class L>
DEVICE Addressee addressee(const Shot<L>& shot, u32 peer) {
    return {shot.args, shot.args.patience, peer, shot.launch, {0, 0}};
}

// The lines that `from` stores for this block into the mailbox of `to`.
template <class L>
DEVICE L* area_of(const Shot<L>& shot, u32 to, u32 from) {
    u64 area_bytes = HEAD_BYTES + lines_for<L>(shot.args.block_bytes) * sizeof(L);
    u64 row = (shot.launch & 1) * shot.args.ranks + from;
    return (L*)(shot.args.mailboxes[to] + (row * shot.args.blocks_max + blockIdx.x) * area_bytes);
}

// A line of data: behind the head.
template <class L>
DEVICE L* line_of(L* area, u64 line) {
    return area + HEAD_BYTES / sizeof(L) + line;
}
