// n sources to m destinations in one pass: a copy if there is one source, else a reduction, of which
// every destination gets the result. Floats of 8 and 16 bits accumulate in f32 over all sources and
// are rounded once.
#include "arguments.cuh"
#include "ops.cuh"
#include "pack.cuh"
#include "types.cuh"

// How a range of elements is cut: [0, head) and [tail, count) go one by one, packs are between.
struct Cut {
    u64 head;
    u64 packs;
    u64 tail;
    // Whether single elements are accessed whole, not byte by byte.
    bool whole;
};

// Packs need all addresses equally far behind a multiple of 16, by whole elements.
template <class E>
DEVICE Cut cut_of(const ReduceCopy& args) {
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

// Packs that a thread works on together, to hide latencies: as many as registers allow.
template <class E>
constexpr u32 UNROLL = sizeof(typename E::Value) / E::BYTES == 4 ? 1 : E::BYTES == 1 ? 2 : 4;

// The elements of `COUNT` packs, `stride` packs apart, from byte `at` of every address on.
template <class E, class O, u32 COUNT>
DEVICE void reduce_packs(const ReduceCopy& args, u64 at, u64 stride) {
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
            results[index].values[lane] = O::after(results[index].values[lane], args.divisor);
        }
        Words words = packed(results[index]);
#pragma unroll 1
        for (u32 target = 0; target < args.target_count; target++) {
            store_data(args.targets[target] + at + index * stride * sizeof(Words), words);
        }
    }
}

template <class E, class O>
DEVICE void reduce_element(const ReduceCopy& args, u64 at, bool whole) {
    typename E::Value result = {};
#pragma unroll 1
    for (u32 source = 0; source < args.source_count; source++) {
        auto element = E::value(load_element<E>(args.sources[source] + at, whole));
        auto value = O::template before<E>(element, args.factors[source]);
        result = source == 0 ? value : O::combine(result, value);
    }
    u64 bits = E::bits(O::after(result, args.divisor));
#pragma unroll 1
    for (u32 target = 0; target < args.target_count; target++) {
        store_element<E>(args.targets[target] + at, whole, bits);
    }
}

template <class E, class O>
DEVICE void reduce_body(const ReduceCopy& args, const Cut& cut) {
    u64 start = cut.head * E::BYTES;
    u64 tile = u64(blockDim.x) * UNROLL<E>;
#pragma unroll 1
    for (u64 first = blockIdx.x * tile; first < cut.packs; first += gridDim.x * tile) {
        u64 own = first + threadIdx.x;
        if (UNROLL<E> > 1 && first + tile <= cut.packs) {
            reduce_packs<E, O, UNROLL<E>>(args, start + own * sizeof(Words), blockDim.x);
        } else {
#pragma unroll 1
            for (; own < cut.packs; own += blockDim.x) {
                reduce_packs<E, O, 1>(args, start + own * sizeof(Words), 0);
            }
        }
    }
}

template <class E, class O>
DEVICE void reduce_copy(const ReduceCopy& args) {
    Cut cut = cut_of<E>(args);
    reduce_body<E, O>(args, cut);
    u64 threads = u64(gridDim.x) * blockDim.x;
    u64 gap = cut.tail - cut.head;
#pragma unroll 1
    for (u64 edge = blockIdx.x * blockDim.x + threadIdx.x; edge < args.count - gap; edge += threads) {
        u64 element = edge < cut.head ? edge : edge + gap;
        reduce_element<E, O>(args, element * E::BYTES, cut.whole);
    }
}

#define REDUCE_COPY_ENTRY(type, op, E, O) \
    UNISONO_KERNEL(reduce_copy_##type##_##op, ReduceCopy) { reduce_copy<E, O>(args); }

// The kernels of one element type, by the names of the host's tables.
#define REDUCE_COPY_TYPE(type, E)            \
    REDUCE_COPY_ENTRY(type, sum, E, Sum)     \
    REDUCE_COPY_ENTRY(type, prod, E, Prod)   \
    REDUCE_COPY_ENTRY(type, min, E, Min)     \
    REDUCE_COPY_ENTRY(type, max, E, Max)     \
    REDUCE_COPY_ENTRY(type, avg, E, Avg)     \
    REDUCE_COPY_ENTRY(type, mulsum, E, PreMulSum)

#define REDUCE_COPY(...) REDUCE_COPY_TYPE(__VA_ARGS__)

// The types; `compile` makes a module of each, as programs use few of them.
#ifdef REDUCE_COPY_ONLY
REDUCE_COPY(REDUCE_COPY_ONLY)
#else
REDUCE_COPY(int8, Int8)
REDUCE_COPY(uint8, UInt8)
REDUCE_COPY(int32, Int32)
REDUCE_COPY(uint32, UInt32)
REDUCE_COPY(int64, Int64)
REDUCE_COPY(uint64, UInt64)
REDUCE_COPY(half, Float16)
REDUCE_COPY(bfloat16, BFloat16)
REDUCE_COPY(float, Float32)
REDUCE_COPY(double, Float64)
REDUCE_COPY(fp8_e4m3, Float8E4M3)
REDUCE_COPY(fp8_e5m2, Float8E5M2)
#endif
