// Who waits when a schedule is carried out, and what it tells the host when it waits no more.
#pragma once

#include "places.cuh"
#include "wait.cuh"

// Words of a tag, in the order in which they are compared: sequence (which is not), what, count, piece.
constexpr u32 TAG_WORDS = 4;

// What all ranks must agree on, with the number of the operation.
DEVICE u64 tag_word(const Stage& stage, u32 index) {
    const Interpret& args = stage.args;
    u64 piece = stage.piece | (args.slice_bytes / 64) << 32;
    return index == 0 ? args.sequence : index == 1 ? args.what : index == 2 ? args.count : piece;
}

// Whether it is the same but for the number: that only says how many operations there were before.
DEVICE bool is_same_tag(const Stage& stage, const u64 (&tag)[TAG_WORDS]) {
    bool same = true;
#pragma unroll
    for (u32 index = 1; index < TAG_WORDS; index++) {
        same = same && tag[index] == tag_word(stage, index);
    }
    return same;
}

struct Doer {
    const Stage& stage;
    const Patience& patience;
    u32 peer;
    u64 step;
    u32 act;

    DEVICE bool is_left() const { return has_left(stage.args.left, peer); }

    DEVICE void describe(Status* status) const {
        status->rank = stage.args.rank;
        status->peer = peer;
        status->step = u32(step);
        status->act = act;
        status->lane = stage.lane;
#pragma unroll
        for (u32 index = 0; index < TAG_WORDS; index++) {
            status->ours[index] = tag_word(stage, index);
        }
    }
};

DEVICE Doer doer(const Stage& stage, u32 peer, u64 step) {
    return {stage, stage.args.patience, peer, step, stage.act};
}

// One whose peer does something else.
struct Refuser : Doer {
    const u64 (&theirs)[TAG_WORDS];

    DEVICE void describe(Status* status) const {
        Doer::describe(status);
#pragma unroll
        for (u32 index = 0; index < TAG_WORDS; index++) {
            status->theirs[index] = theirs[index];
        }
    }
};

// Tells the host that the peer is doing something else, or something of another length.
DEVICE bool refuse(const Doer& doer, State why, const u64 (&theirs)[TAG_WORDS], u64 wanted, u64 seen) {
    give_up(Refuser{doer, theirs}, why, wanted, seen);
    return false;
}
