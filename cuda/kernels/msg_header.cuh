// Headers of messages: in a slot before the data, or as the first lines.
#pragma once

#include "wait_context.cuh"
#include "ll.cuh"
#include "slots.cuh"

struct MessageHeader {
    u64 tag[TAG_WORDS];
    u64 bytes;
};

constexpr u32 HEADER_WORDS = TAG_WORDS + 1;

DEVICE u64 header_bytes(const KernelContext& context) { return context.args.protocol == LL ? 2 * HEADER_BYTES : HEADER_BYTES; }

static_assert(HEADER_WORDS * sizeof(LlLine) <= 2 * HEADER_BYTES);
#ifdef UNISONO_LL128
static_assert((HEADER_WORDS + Ll128Line::WORDS64 - 1) / Ll128Line::WORDS64 * sizeof(Ll128Line) <= HEADER_BYTES);
#endif

DEVICE u64& word_of(MessageHeader& head, u32 index) { return index < TAG_WORDS ? head.tag[index] : head.bytes; }

// Waits for the words of the header in a slot.
DEVICE bool wait_header_words(u64 (&words)[HEADER_WORDS], const KernelContext& context, const Fifo& fifo, u64 step,
                            const WaitContext& waiter) {
    const u8* start = slot(fifo, step);
    if (is_ll128(context.args.protocol)) {
        return wait_words(words, (const Ll128Line*)start, flag_of(step), waiter);
    }
    if (context.args.protocol == LL) {
        return wait_words(words, (const LlLine*)start, flag_of(step), waiter);
    }
    if (!wait_until(fifo.tail, step + 1, waiter)) {
        return false;
    }
#pragma unroll
    for (u32 index = 0; index < HEADER_WORDS; index++) {
        load_data(words[index], start + index * sizeof(u64));
    }
    return true;
}

DEVICE bool wait_header(MessageHeader& head, const KernelContext& context, const Fifo& fifo, u64 step, const WaitContext& waiter) {
    u64 words[HEADER_WORDS];
    if (!wait_header_words(words, context, fifo, step, waiter)) {
        return false;
    }
#pragma unroll
    for (u32 index = 0; index < HEADER_WORDS; index++) {
        word_of(head, index) = words[index];
    }
    return true;
}

DEVICE void store_header(const KernelContext& context, const Fifo& fifo, u64 step, u64 bytes) {
    u8* start = slot(fifo, step);
    u64 words[HEADER_WORDS];
#pragma unroll
    for (u32 index = 0; index < HEADER_WORDS; index++) {
        words[index] = index < TAG_WORDS ? tag_word(context, index) : bytes;
    }
    if (is_ll128(context.args.protocol)) {
        return store_words((Ll128Line*)start, words, flag_of(step));
    }
    if (context.args.protocol == LL) {
        return store_words((LlLine*)start, words, flag_of(step));
    }
#pragma unroll
    for (u32 index = 0; index < HEADER_WORDS; index++) {
        store_data(start + index * sizeof(u64), words[index]);
    }
}
