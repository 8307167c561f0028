// Copies one source to several destinations in one pass, bit for bit.
#pragma once

#include "reduce.cuh"

// Words that a thread has under way at once.
constexpr u32 COPIES_IN_FLIGHT = 4;

template <u32 COUNT, class A>
DEVICE void copy_packs(const A& args, u64 at, u64 stride) {
    Words words[COUNT];
#pragma unroll
    for (u32 index = 0; index < COUNT; index++) {
        load_data(words[index], args.sources[0] + at + index * stride * sizeof(Words));
    }
#pragma unroll 1
    for (u32 target = 0; target < args.target_count; target++) {
#pragma unroll
        for (u32 index = 0; index < COUNT; index++) {
            store_data(args.targets[target] + at + index * stride * sizeof(Words), words[index]);
        }
    }
}

template <class E, class A>
DEVICE void copy_element(const A& args, u64 at, bool whole) {
    u64 bits = load_element<E>(args.sources[0] + at, whole);
#pragma unroll 1
    for (u32 target = 0; target < args.target_count; target++) {
        store_element<E>(args.targets[target] + at, whole, bits);
    }
}

// Run by all threads of one block.
template <class E, class A>
DEVICE void copy_all(const A& args) {
    VectorSplit cut = cut_of<E>(args);
    u64 start = cut.head * E::BYTES;
    u64 tile = u64(blockDim.x) * COPIES_IN_FLIGHT;
    u64 own = threadIdx.x;
#pragma unroll 1
    for (; own - threadIdx.x + tile <= cut.packs; own += tile) {
        copy_packs<COPIES_IN_FLIGHT>(args, start + own * sizeof(Words), blockDim.x);
    }
#pragma unroll 1
    for (; own < cut.packs; own += blockDim.x) {
        copy_packs<1>(args, start + own * sizeof(Words), 0);
    }
    u64 gap = cut.tail - cut.head;
#pragma unroll 1
    for (u64 edge = threadIdx.x; edge < args.count - gap; edge += blockDim.x) {
        copy_element<E>(args, (edge < cut.head ? edge : edge + gap) * E::BYTES, cut.whole);
    }
}
