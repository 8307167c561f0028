// Sixteen bytes of elements as values, and the division of memory into packs: an unaligned head, a
// body of packs, a tail.
#pragma once

#include "target.cuh"

template <class E>
struct Pack {
    static constexpr u32 ELEMENTS = sizeof(Words) / E::BYTES;
    typename E::Value values[ELEMENTS];
};

// Bits of the element `index`, which the compiler knows.
template <class E>
DEVICE u64 element_bits(const Words& words, u32 index) {
    if (E::BYTES == 8) {
        return u64(words.words[2 * index + 1]) << 32 | words.words[2 * index];
    }
    u32 bit = 8 * E::BYTES * index;
    u32 mask = E::BYTES == 4 ? ~0u : (1u << (8 * E::BYTES % 32)) - 1;
    return (words.words[bit / 32] >> (bit % 32)) & mask;
}

template <class E>
DEVICE Pack<E> unpacked(const Words& words) {
    Pack<E> pack;
#pragma unroll
    for (u32 index = 0; index < Pack<E>::ELEMENTS; index++) {
        pack.values[index] = E::value(element_bits<E>(words, index));
    }
    return pack;
}

template <class E>
DEVICE Words packed(const Pack<E>& pack) {
    Words words = {};
#pragma unroll
    for (u32 index = 0; index < Pack<E>::ELEMENTS; index++) {
        u64 bits = E::bits(pack.values[index]);
        if (E::BYTES == 8) {
            words.words[2 * index] = u32(bits);
            words.words[2 * index + 1] = u32(bits >> 32);
        } else {
            u32 bit = 8 * E::BYTES * index;
            u32 mask = E::BYTES == 4 ? ~0u : (1u << (8 * E::BYTES % 32)) - 1;
            words.words[bit / 32] |= (u32(bits) & mask) << (bit % 32);
        }
    }
    return words;
}

// Bits of the element at `from`: by one access if its address is a multiple of its size, else by
// bytes.
template <class E>
DEVICE u64 load_element(const u8* from, bool whole) {
    if (whole) {
        typename E::Bits bits;
        load_data(bits, from);
        return bits;
    }
    u64 bits = 0;
#pragma unroll 1
    for (u32 at = 0; at < E::BYTES; at++) {
        u8 byte;
        load_data(byte, from + at);
        bits |= u64(byte) << (8 * at);
    }
    return bits;
}

// The contrary of `load_element`.
template <class E>
DEVICE void store_element(u8* to, bool whole, u64 bits) {
    if (whole) {
        return store_data(to, typename E::Bits(bits));
    }
#pragma unroll 1
    for (u32 at = 0; at < E::BYTES; at++) {
        store_data(to + at, u8(bits >> (8 * at)));
    }
}

// The largest power of two that divides `address`; 16 if that is larger.
DEVICE u32 alignment_of(u64 address) {
    u32 low = u32(address) & 15;
    return low == 0 ? 16 : low & (0 - low);
}
