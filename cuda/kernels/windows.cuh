// Windows: signals between ranks, and the two parities of a channel, which alternate.
//
// A rank's inbox has a word for each lane and rank (signals), and one for each channel and rank
// (completed window sequences). It also has tags for each channel, rank and parity: the rank's
// operation when it gave its first signal there.
#pragma once

#include "wait_context.cuh"

// Low bits of a signal that count within an window_sequence.
constexpr u32 SIGNAL_BITS = 16;

DEVICE u64* signal_word(const KernelContext& context, u32 of, u32 from) {
    return context.args.peer_windows[of].inbox + u64(context.lane) * context.args.ranks + from;
}

DEVICE u64* done_word(const KernelContext& context, u32 of, u32 from) {
    u64 row = context.args.channels_max * LANES + context.channel;
    return context.args.peer_windows[of].inbox + row * context.args.ranks + from;
}

DEVICE u64* tag_words(const KernelContext& context, u32 of, u32 from) {
    u64 behind = u64(context.args.channels_max) * (LANES + 1) * context.args.ranks;
    u64 row = (context.channel * 2 + (context.window_sequence & 1)) * context.args.ranks + from;
    return context.args.peer_windows[of].inbox + behind + row * TAG_WORDS;
}

// Returns true for the operation's first window sequence on this channel: tags are compared there.
DEVICE bool is_first(const KernelContext& context) { return context.slice == context.channel; }

// Waits until every rank has finished the window sequence before the last, which used this parity.
// Run by all threads.
DEVICE bool enter_parity(const KernelContext& context) {
    u64 needed = context.window_sequence == 0 ? 0 : context.window_sequence - 1;
    bool free = true;
#pragma unroll 1
    for (u32 peer = threadIdx.x; peer < context.args.ranks && free; peer += blockDim.x) {
        const u64* done = done_word(context, context.args.rank, peer);
        free = peer == context.args.rank || wait_until(done, needed, wait_context(context, peer, context.window_sequence));
    }
    return __syncthreads_and(free);
}

// Tells every rank that this window sequence is done. Run by all threads, after a barrier.
DEVICE void leave_parity(KernelContext& context) {
    context.window_sequence++;
#pragma unroll 1
    for (u32 peer = threadIdx.x; peer < context.args.ranks; peer += blockDim.x) {
        store_release(done_word(context, peer, context.args.rank), context.window_sequence);
    }
}

DEVICE void store_tag(const KernelContext& context, u64* to) {
#pragma unroll
    for (u32 index = 0; index < TAG_WORDS; index++) {
        store_data(to + index, tag_word(context, index));
    }
}

// Compares a peer's operation with this rank's, by the tag that the peer has written before its
// first signal.
DEVICE bool check_tag(const KernelContext& context, const WaitContext& waiter, u32 peer) {
    const u64* words = tag_words(context, context.args.rank, peer);
    u64 tag[TAG_WORDS];
#pragma unroll
    for (u32 index = 0; index < TAG_WORDS; index++) {
        load_data(tag[index], words + index);
    }
    return is_same_tag(context, tag) || report_mismatch(waiter, MISMATCH, tag, 0, 0);
}

// Tells every rank that all instructions so far are done. Run by all threads, after a barrier.
DEVICE void signal(KernelContext& context) {
    bool tags = context.signals++ == 0 && is_first(context);
#pragma unroll 1
    for (u32 peer = threadIdx.x; peer < context.args.ranks; peer += blockDim.x) {
        if (tags) {
            store_tag(context, tag_words(context, peer, context.args.rank));
        }
        store_release(signal_word(context, peer, context.args.rank), context.window_sequence << SIGNAL_BITS | context.signals);
    }
}

// Waits for one signal, in this instruction. Run by one thread.
DEVICE bool wait_signal(const KernelContext& context, const Instr& instr, u32 index) {
    WaitContext waiter = {context, context.args.deadline, instr.peer, context.window_sequence, index};
    u64 wanted = context.window_sequence << SIGNAL_BITS | instr.signals;
    return wait_until(signal_word(context, context.args.rank, instr.peer), wanted, waiter) &&
           (!is_first(context) || check_tag(context, waiter, instr.peer));
}
