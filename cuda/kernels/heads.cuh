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

DEVICE u64& word_of(Head& head, u32 index) { return index < TAG_WORDS ? head.tag[index] : head.bytes; }

DEVICE bool wait_head(Head& head, const Stage& stage, const Fifo& fifo, u64 step, const Doer& waiter) {
    const u8* start = slot(fifo, step);
    if (stage.args.protocol == SLOTS && !wait_until(fifo.tail, step + 1, waiter)) {
        return false;
    }
#pragma unroll
    for (u32 index = 0; index < HEAD_WORDS; index++) {
        u64& word = word_of(head, index);
        if (stage.args.protocol == SLOTS) {
            load_data(word, start + index * sizeof(u64));
        } else if (!wait_line(word, start + index * LINE_BYTES, flag_of(step), waiter)) {
            return false;
        }
    }
    return true;
}

DEVICE void store_head(const Stage& stage, const Fifo& fifo, u64 step, u64 bytes) {
    u8* start = slot(fifo, step);
#pragma unroll
    for (u32 index = 0; index < HEAD_WORDS; index++) {
        u64 word = index < TAG_WORDS ? tag_word(stage, index) : bytes;
        if (stage.args.protocol == SLOTS) {
            store_data(start + index * sizeof(u64), word);
        } else {
            store_line(start + index * LINE_BYTES, word, flag_of(step));
        }
    }
}
