// Elementwise functions of modules, and their gradients: bit for bit those of the trainer's
// `src/nn`.
#include "model_arguments.cuh"
#include "model_lanes.cuh"
#include "model_math.cuh"

// to = f(one, other, index).
template <class F>
DEVICE void map(const Elementwise& args, F f) {
    each(args.count, u64(args.to) | u64(args.one) | u64(args.other), [&](auto width, u64 at) {
        constexpr u32 LANES = decltype(width)::LANES;
        Lanes<LANES> one = load<LANES>(args.one + at), other = load<LANES>(args.other + at), to;
#pragma unroll
        for (u32 lane = 0; lane < LANES; lane++) {
            to.at[lane] = f(one.at[lane], other.at[lane]);
        }
        store(args.to + at, to);
    });
}

constexpr float SQRT_2_OVER_PI = 0.7978846f, CUBIC = 0.044715f, SQRT_1_2 = 0.70710678118654752f;
constexpr float TWO_OVER_SQRT_PI = 1.12837916709551257f;

// (1 + tanh u) / 2 is the sigmoid of it.
DEVICE float twice_u(float x) { return 2.0f * SQRT_2_OVER_PI * (x + CUBIC * x * x * x); }

DEVICE float tanh_slope(float x) {
    float s = sigmoid(twice_u(x));
    float slope_of_twice_u = 2.0f * SQRT_2_OVER_PI * (1.0f + 3.0f * CUBIC * x * x);
    return s + x * s * (1.0f - s) * slope_of_twice_u;
}

// The normal distribution.
DEVICE float normal(float x) { return 0.5f + 0.5f * fast_erf(x * SQRT_1_2); }

DEVICE float exact_slope(float x) {
    return normal(x) + x * (0.5f * SQRT_1_2 * TWO_OVER_SQRT_PI) * fast_exp(-0.5f * x * x);
}

UNISONO_KERNEL(gelu_tanh, Elementwise) {
    map(args, [](float x, float) { return x * sigmoid(twice_u(x)); });
}

UNISONO_KERNEL(gelu_tanh_backward, Elementwise) {
    map(args, [](float x, float dy) { return dy * tanh_slope(x); });
}

UNISONO_KERNEL(gelu_exact, Elementwise) {
    map(args, [](float x, float) { return x * normal(x); });
}

UNISONO_KERNEL(gelu_exact_backward, Elementwise) {
    map(args, [](float x, float dy) { return dy * exact_slope(x); });
}

// to = factors[0] one + factors[1] other.
UNISONO_KERNEL(weighted_sum, Elementwise) {
    map(args, [&](float one, float other) { return one * args.factors[0] + other * args.factors[1]; });
}

// to = factors[0] one.
UNISONO_KERNEL(scaled, Elementwise) {
    map(args, [&](float one, float) { return one * args.factors[0]; });
}

// The finaliser of MurmurHash3.
DEVICE u32 scramble(u32 bits) {
    bits = (bits ^ (bits >> 16)) * 0x85ebca6b;
    bits = (bits ^ (bits >> 13)) * 0xc2b2ae35;
    return bits ^ (bits >> 16);
}

UNISONO_KERNEL(dropout, Dropout) {
    each(args.count, u64(args.values), [&](auto width, u64 at) {
        constexpr u32 LANES = decltype(width)::LANES;
        Lanes<LANES> values = load<LANES>(args.values + at);
#pragma unroll
        for (u32 lane = 0; lane < LANES; lane++) {
            u32 draw = scramble(scramble(u32(at + lane) ^ args.key[0]) + args.key[1]);
            values.at[lane] = draw >= args.least ? values.at[lane] * args.factor : 0.0f;
        }
        store(args.values + at, values);
    });
}

// Calls `body` with the chunks of gate, up and the output of every element.
template <class B>
DEVICE void gated(const Gated& args, B body) {
#pragma unroll 1
    for (u64 at = first_thread(); at < args.rows * args.width; at += all_threads()) {
        float* gate = args.wide + at / args.width * args.width + at;
        body(*gate, gate[args.width], args.narrow[at]);
    }
}

UNISONO_KERNEL(swiglu, Gated) {
    gated(args, [](float gate, float up, float& y) { y = gate * sigmoid(gate) * up; });
}

// Replaces gate and up by their gradients.
UNISONO_KERNEL(swiglu_backward, Gated) {
    gated(args, [](float& gate, float& up, float dy) {
        float x = gate, s = sigmoid(x);
        gate = dy * up * (s + x * s * (1.0f - s));
        up = dy * (x * s);
    });
}
