// Copies by all threads of a block, in the widest accesses that both addresses allow.
#pragma once

#include "vec16.cuh"

template <class T>
DEVICE void copy_by(u8* to, const u8* from, u64 bytes) {
#pragma unroll 4
    for (u64 at = threadIdx.x * sizeof(T); at + sizeof(T) <= bytes; at += blockDim.x * sizeof(T)) {
        T slice;
        load_data(slice, from + at);
        store_data(to + at, slice);
    }
}

DEVICE void copy_block(u8* to, const u8* from, u64 bytes) {
    u64 bulk = alignment_of(u64(to) | u64(from)) == 16 ? bytes / 16 * 16 : 0;
    copy_by<Words>(to, from, bulk);
    copy_by<u8>(to + bulk, from + bulk, bytes - bulk);
}
