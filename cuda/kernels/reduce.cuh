// Reduces sources to destinations in one pass. Floats of 8 and 16 bits accumulate in f32 over all
// sources and are rounded once.
//
// The argument has the fields of `ReduceCopy`: sources, targets, factors, their counts, count of
// elements, divisor.
#pragma once

#include "ops.cuh"
#include "vec16.cuh"

// The blocks that share the work.
struct BlockTeam {
    u32 block;
    u32 blocks;
};

// Division of a range of elements: [0, head) and [tail, count) go one by one, and packs are
// between.
struct VectorSplit {
    u64 head;
    u64 packs;
    u64 tail;
    // True if single elements are accessed by one access each, and not byte by byte.
    bool whole;
};

// Packs need all addresses to have the same offset from a multiple of 16, by whole elements.
template <class E, class A>
DEVICE VectorSplit cut_of(const A& args) {
    u64 first = u64(args.targets[0]), any = first, different = 0;
#pragma unroll 1
    for (u32 index = 1; index < args.target_count; index++) {
        any |= u64(args.targets[index]);
        different |= u64(args.targets[index]) ^ first;
    }
#pragma unroll 1
    for (u32 index = 0; index < args.source_count; index++) {
        any |= u64(args.sources[index]);
        different |= u64(args.sources[index]) ^ first;
    }
    bool together = (different & 15) == 0 && first % E::BYTES == 0;
    u64 before = ((0 - first) & 15) / E::BYTES;
    u64 head = together && before < args.count ? before : args.count;
    u64 packs = (args.count - head) / Pack<E>::ELEMENTS;
    return {head, packs, head + packs * Pack<E>::ELEMENTS, any % E::BYTES == 0};
}

// Packs that a thread processes together to hide latencies: as many as registers allow.
template <class E, class A>
constexpr u32 UNROLL = sizeof(typename E::Value) / E::BYTES == 4 ? 1 : E::BYTES == 1 ? 2 : 4;

// The elements of `COUNT` packs, `stride` packs apart, from byte `at` of every address on.
template <class E, class O, u32 COUNT, class A>
DEVICE void reduce_packs(const A& args, u64 at, u64 stride) {
    Pack<E> results[COUNT];
#pragma unroll 1
    for (u32 source = 0; source < args.source_count; source++) {
        Words words[COUNT];
#pragma unroll
        for (u32 index = 0; index < COUNT; index++) {
            load_data(words[index], args.sources[source] + at + index * stride * sizeof(Words));
        }
#pragma unroll
        for (u32 index = 0; index < COUNT; index++) {
            Pack<E> operand = unpacked<E>(words[index]);
#pragma unroll
            for (u32 lane = 0; lane < Pack<E>::ELEMENTS; lane++) {
                auto value = O::template before<E>(operand.values[lane], args.factors[source]);
                auto& result = results[index].values[lane];
                result = source == 0 ? value : O::combine(result, value);
            }
        }
    }
#pragma unroll
    for (u32 index = 0; index < COUNT; index++) {
#pragma unroll
        for (u32 lane = 0; lane < Pack<E>::ELEMENTS; lane++) {
            results[index].values[lane] = O::template after<E>(results[index].values[lane], args.divisor);
        }
        Words words = packed(results[index]);
#pragma unroll 1
        for (u32 target = 0; target < args.target_count; target++) {
            store_data(args.targets[target] + at + index * stride * sizeof(Words), words);
        }
    }
}

template <class E, class O, class A>
DEVICE void reduce_element(const A& args, u64 at, bool whole) {
    typename E::Value result = {};
#pragma unroll 1
    for (u32 source = 0; source < args.source_count; source++) {
        auto element = E::value(load_element<E>(args.sources[source] + at, whole));
        auto value = O::template before<E>(element, args.factors[source]);
        result = source == 0 ? value : O::combine(result, value);
    }
    u64 bits = E::bits(O::template after<E>(result, args.divisor));
#pragma unroll 1
    for (u32 target = 0; target < args.target_count; target++) {
        store_element<E>(args.targets[target] + at, whole, bits);
    }
}

template <class E, class O, class A>
DEVICE void reduce_body(const A& args, const VectorSplit& cut, const BlockTeam& team) {
    u64 start = cut.head * E::BYTES;
    u64 tile = u64(blockDim.x) * UNROLL<E, A>;
#pragma unroll 1
    for (u64 first = team.block * tile; first < cut.packs; first += team.blocks * tile) {
        u64 own = first + threadIdx.x, end = first + tile < cut.packs ? first + tile : cut.packs;
        if (UNROLL<E, A> > 1 && first + tile <= cut.packs) {
            reduce_packs<E, O, UNROLL<E, A>>(args, start + own * sizeof(Words), blockDim.x);
        } else {
#pragma unroll 1
            for (; own < end; own += blockDim.x) {
                reduce_packs<E, O, 1>(args, start + own * sizeof(Words), 0);
            }
        }
    }
}

template <class E, class O, class A>
DEVICE void reduce(const A& args, const BlockTeam& team) {
    VectorSplit cut = cut_of<E>(args);
    reduce_body<E, O>(args, cut, team);
    u64 threads = u64(team.blocks) * blockDim.x;
    u64 gap = cut.tail - cut.head;
#pragma unroll 1
    for (u64 edge = team.block * blockDim.x + threadIdx.x; edge < args.count - gap; edge += threads) {
        u64 element = edge < cut.head ? edge : edge + gap;
        reduce_element<E, O>(args, element * E::BYTES, cut.whole);
    }
}
