// Operations on gradients between the backward pass and the optimizer step: `reducers/src/host/gradients.rs`
// and `convert.rs`.
#include "model_arguments.cuh"
#include "model_lanes.cuh"

// Sums in f64: no square of an f32 overflows, and the order is that of the launch's shape alone.
UNISONO_KERNEL(squares, SquareSums) {
    double sum = 0.0;
    each(args.count, u64(args.values), [&](auto width, u64 at) {
        constexpr u32 LANES = decltype(width)::LANES;
        Lanes<LANES> values = load<LANES>(args.values + at);
#pragma unroll
        for (u32 lane = 0; lane < LANES; lane++) {
            sum += double(values.at[lane]) * double(values.at[lane]);
        }
    });
    double whole = block_sum(sum);
    if (threadIdx.x == 0) {
        args.partial[blockIdx.x] = whole;
    }
}

// One block adds up the sums of the others.
UNISONO_KERNEL(total, SquareSums) {
    double sum = 0.0;
    for (u64 at = threadIdx.x; at < args.partials; at += blockDim.x) {
        sum += args.partial[at];
    }
    double whole = block_sum(sum);
    if (threadIdx.x == 0) {
        *args.total = whole;
    }
}

UNISONO_KERNEL(scale_and_clip, Clip) {
    double norm = square_root(*args.squares) * double(args.scale), least = args.longest / (norm + 1e-6);
    float factor = args.longest > 0.0 ? float(least < 1.0 ? least : 1.0) : 1.0f;
    each(args.count, u64(args.values), [&](auto width, u64 at) {
        constexpr u32 LANES = decltype(width)::LANES;
        Lanes<LANES> values = load<LANES>(args.values + at);
#pragma unroll
        for (u32 lane = 0; lane < LANES; lane++) {
            values.at[lane] = values.at[lane] * args.scale * factor;
        }
        store(args.values + at, values);
    });
}

// Packed64 at a time, if sums_and_target_logits addresses allow it: sixteen bytes of bfloat16.
template <class B>
DEVICE void convert(const Convert& args, B body) {
    bool aligned = alignment_of(u64(args.wide) | u64(args.narrow)) == 16;
    u64 eights = aligned ? args.count / 8 : 0;
#pragma unroll 1
    for (u64 at = first_thread(); at < eights; at += all_threads()) {
        body(Width<8>(), 8 * at);
    }
#pragma unroll 1
    for (u64 at = 8 * eights + first_thread(); at < args.count; at += all_threads()) {
        body(Width<1>(), at);
    }
}

template <u32 COUNT>
struct alignas(2 * COUNT) Halves {
    u16 at[COUNT];
};

UNISONO_KERNEL(widen, Convert) {
    convert(args, [&](auto width, u64 at) {
        constexpr u32 LANES = decltype(width)::LANES;
        Halves<LANES> halves = *(const Halves<LANES>*)(args.narrow + at);
        Lanes<LANES> wide;
#pragma unroll
        for (u32 lane = 0; lane < LANES; lane++) {
            wide.at[lane] = bfloat16_value(halves.at[lane]);
        }
        store(args.wide + at, wide);
    });
}

UNISONO_KERNEL(narrow, Convert) {
    convert(args, [&](auto width, u64 at) {
        constexpr u32 LANES = decltype(width)::LANES;
        Lanes<LANES> wide = load<LANES>(args.wide + at);
        Halves<LANES> halves;
#pragma unroll
        for (u32 lane = 0; lane < LANES; lane++) {
            halves.at[lane] = u16(bfloat16_bits(wide.at[lane]));
        }
        *(Halves<LANES>*)(args.narrow + at) = halves;
    });
}
