// Heads of messages: in a slot before the data, or as the first lines.
#pragma once

#include "doer.cuh"
#include "lines.cuh"
#include "slots.cuh"

struct Head {
    u64 tag[TAG_WORDS];
    u64 bytes;
};

constexpr u32 HEAD_WORDS = TAG_WORDS + 1;

DEVICE u64 head_bytes(const Stage& stage) { return stage.args.protocol == LINES ? 2 * HEAD_BYTES : HEAD_BYTES; }

static_assert(HEAD_WORDS * sizeof(NarrowLine) <= 2 * HEAD_BYTES);
#ifdef UNISONO_WIDE
static_assert((HEAD_WORDS + WideLine::EIGHTS - 1) / WideLine::EIGHTS * sizeof(WideLine) <= HEAD_BYTES);
#endif

DEVICE u64& word_of(Head& head, u32 index) { return index < TAG_WORDS ? head.tag[index] : head.bytes; }

// The words of the head in a slot, when they are there.
DEVICE bool wait_head_words(u64 (&words)[HEAD_WORDS], const Stage& stage, const Fifo& fifo, u64 step,
                            const Doer& waiter) {
    const u8* start = slot(fifo, step);
    if (is_wide(stage.args.protocol)) {
        return wait_words(words, (const WideLine*)start, flag_of(step), waiter);
    }
    if (stage.args.protocol == LINES) {
        return wait_words(words, (const NarrowLine*)start, flag_of(step), waiter);
    }
    if (!wait_until(fifo.tail, step + 1, waiter)) {
        return false;
    }
#pragma unroll
    for (u32 index = 0; index < HEAD_WORDS; index++) {
        load_data(words[index], start + index * sizeof(u64));
    }
    return true;
}

DEVICE bool wait_head(Head& head, const Stage& stage, const Fifo& fifo, u64 step, const Doer& waiter) {
    u64 words[HEAD_WORDS];
    if (!wait_head_words(words, stage, fifo, step, waiter)) {
        return false;
    }
#pragma unroll
    for (u32 index = 0; index < HEAD_WORDS; index++) {
        word_of(head, index) = words[index];
    }
    return true;
}

DEVICE void store_head(const Stage& stage, const Fifo& fifo, u64 step, u64 bytes) {
    u8* start = slot(fifo, step);
    u64 words[HEAD_WORDS];
#pragma unroll
    for (u32 index = 0; index < HEAD_WORDS; index++) {
        words[index] = index < TAG_WORDS ? tag_word(stage, index) : bytes;
    }
    if (is_wide(stage.args.protocol)) {
        return store_words((WideLine*)start, words, flag_of(step));
    }
    if (stage.args.protocol == LINES) {
        return store_words((NarrowLine*)start, words, flag_of(step));
    }
#pragma unroll
    for (u32 index = 0; index < HEAD_WORDS; index++) {
        store_data(start + index * sizeof(u64), words[index]);
    }
}
