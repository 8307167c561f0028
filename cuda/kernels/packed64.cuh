// Elements in LL lines: 8-byte words, and as many words as a line carries.
#pragma once

#include "ll.cuh"
#include "ops.cuh"
#include "vec16.cuh"

// Loads the first `bytes` of 8 from an address of any alignment, and zeros behind them.
template <class E>
DEVICE u64 load_packed64(const u8* from, u64 bytes) {
    u64 eight = 0;
    if (bytes >= 8 && u64(from) % 8 == 0) {
        load_data(eight, from);
        return eight;
    }
    bool whole = u64(from) % E::BYTES == 0;
#pragma unroll 1
    for (u32 at = 0; at < 8 && at < bytes; at += E::BYTES) {
        eight |= load_element<E>(from + at, whole) << (8 * at);
    }
    return eight;
}

template <class E>
DEVICE void store_packed64(u8* to, u64 bytes, u64 eight) {
    if (bytes >= 8 && u64(to) % 8 == 0) {
        return store_data(to, eight);
    }
    bool whole = u64(to) % E::BYTES == 0;
#pragma unroll 1
    for (u32 at = 0; at < 8 && at < bytes; at += E::BYTES) {
        store_element<E>(to + at, whole, eight >> (8 * at));
    }
}

// Loads the data of a line from the `bytes` at an address, and zeros behind them.
template <class E, class L>
DEVICE LinePayload<L> load_content(const u8* from, u64 bytes) {
    LinePayload<L> content;
#pragma unroll
    for (u32 index = 0; index < L::WORDS64; index++) {
        u64 at = 8 * index;
        content.at[index] = at < bytes ? load_packed64<E>(from + at, bytes - at) : 0;
    }
    return content;
}

template <class E, class L>
DEVICE void store_content(u8* to, u64 bytes, const LinePayload<L>& content) {
#pragma unroll
    for (u32 index = 0; index < L::WORDS64; index++) {
        u64 at = 8 * index;
        if (at < bytes) {
            store_packed64<E>(to + at, bytes - at, content.at[index]);
        }
    }
}

template <class E>
DEVICE typename E::Value lane_of(u64 eight, u32 lane) {
    return E::value(eight >> (8 * E::BYTES * lane) & (~0ull >> (64 - 8 * E::BYTES)));
}

template <class E>
DEVICE u64 lane_bits(typename E::Value value, u32 lane) {
    return (E::bits(value) & (~0ull >> (64 - 8 * E::BYTES))) << (8 * E::BYTES * lane);
}
