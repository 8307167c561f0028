// Windows: signals between ranks, and the two banks of a channel, which instances of programs use in turn.
//
// A rank's inbox has a word for each lane and rank (signals), one for each channel and rank (instances done), and
// tags for each channel, rank and bank: what the rank was doing when it gave its first signal there.
#pragma once

#include "doer.cuh"

// Low bits of a signal that count within an instance.
constexpr u32 SIGNAL_BITS = 16;

DEVICE u64* signal_word(const Stage& stage, u32 of, u32 from) {
    return stage.args.neighbours[of].inbox + u64(stage.lane) * stage.args.ranks + from;
}

DEVICE u64* done_word(const Stage& stage, u32 of, u32 from) {
    u64 row = stage.args.channels_max * LANES + stage.channel;
    return stage.args.neighbours[of].inbox + row * stage.args.ranks + from;
}

DEVICE u64* tag_words(const Stage& stage, u32 of, u32 from) {
    u64 behind = u64(stage.args.channels_max) * (LANES + 1) * stage.args.ranks;
    u64 row = (stage.channel * 2 + (stage.instance & 1)) * stage.args.ranks + from;
    return stage.args.neighbours[of].inbox + behind + row * TAG_WORDS;
}

// Whether this is the operation's first instance on this channel: there, tags are compared.
DEVICE bool is_first(const Stage& stage) { return stage.piece == stage.channel; }

// Waits until every rank has finished the instance before the last, which used this bank. By all threads.
DEVICE bool enter_bank(const Stage& stage) {
    u64 needed = stage.instance == 0 ? 0 : stage.instance - 1;
    bool free = true;
#pragma unroll 1
    for (u32 peer = threadIdx.x; peer < stage.args.ranks && free; peer += blockDim.x) {
        const u64* done = done_word(stage, stage.args.rank, peer);
        free = peer == stage.args.rank || wait_until(done, needed, doer(stage, peer, stage.instance));
    }
    return __syncthreads_and(free);
}

// Tells every rank that this instance is done. By all threads, after a barrier.
DEVICE void leave_bank(Stage& stage) {
    stage.instance++;
#pragma unroll 1
    for (u32 peer = threadIdx.x; peer < stage.args.ranks; peer += blockDim.x) {
        store_release(done_word(stage, peer, stage.args.rank), stage.instance);
    }
}

DEVICE void store_tag(const Stage& stage, u64* to) {
#pragma unroll
    for (u32 index = 0; index < TAG_WORDS; index++) {
        store_data(to + index, tag_word(stage, index));
    }
}

// Whether a peer does the same, by what it has written before its first signal.
DEVICE bool agrees(const Stage& stage, const Doer& waiter, u32 peer) {
    const u64* words = tag_words(stage, stage.args.rank, peer);
    u64 tag[TAG_WORDS];
#pragma unroll
    for (u32 index = 0; index < TAG_WORDS; index++) {
        load_data(tag[index], words + index);
    }
    return is_same_tag(stage, tag) || refuse(waiter, MISMATCH, tag, 0, 0);
}

// Tells every rank that all acts so far are done. By all threads, after a barrier.
DEVICE void signal(Stage& stage) {
    bool tags = stage.signals++ == 0 && is_first(stage);
#pragma unroll 1
    for (u32 peer = threadIdx.x; peer < stage.args.ranks; peer += blockDim.x) {
        if (tags) {
            store_tag(stage, tag_words(stage, peer, stage.args.rank));
        }
        store_release(signal_word(stage, peer, stage.args.rank), stage.instance << SIGNAL_BITS | stage.signals);
    }
}

// Waits for one signal. By one thread.
DEVICE bool wait_signal(const Stage& stage, const Act& act) {
    Doer waiter = doer(stage, act.peer, stage.instance);
    u64 wanted = stage.instance << SIGNAL_BITS | act.signals;
    return wait_until(signal_word(stage, stage.args.rank, act.peer), wanted, waiter) &&
           (!is_first(stage) || agrees(stage, waiter, act.peer));
}
