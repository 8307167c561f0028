// Optimizer steps: bit for bit those of the trainer's `src/optim`.
#include "model_arguments.cuh"
#include "model_lanes.cuh"

UNISONO_KERNEL(adamw, AdamW) {
    u64 addresses = u64(args.weights) | u64(args.gradient) | u64(args.first) | u64(args.second);
    each(args.count, addresses, [&](auto width, u64 at) {
        constexpr u32 LANES = decltype(width)::LANES;
        Lanes<LANES> weights = load<LANES>(args.weights + at), grads = load<LANES>(args.gradient + at);
        Lanes<LANES> first = load<LANES>(args.first + at), second = load<LANES>(args.second + at);
#pragma unroll
        for (u32 lane = 0; lane < LANES; lane++) {
            float slope = grads.at[lane] * args.factor;
            first.at[lane] += (slope - first.at[lane]) * args.less[0];
            second.at[lane] = second.at[lane] * args.beta + slope * slope * args.less[1];
            float length = square_root(second.at[lane]) / args.root + args.epsilon;
            weights.at[lane] = weights.at[lane] * args.keep - args.rate * first.at[lane] / length;
        }
        store(args.first + at, first);
        store(args.second + at, second);
        store(args.weights + at, weights);
    });
}

// moment = momentum · moment + g and direction = g + momentum · moment, with g = factor · gradient.
UNISONO_KERNEL(muon_momentum, MuonMomentum) {
    u64 addresses = u64(args.gradient) | u64(args.moment) | u64(args.direction);
    each(args.count, addresses, [&](auto width, u64 at) {
        constexpr u32 LANES = decltype(width)::LANES;
        Lanes<LANES> grads = load<LANES>(args.gradient + at), moment = load<LANES>(args.moment + at), to;
#pragma unroll
        for (u32 lane = 0; lane < LANES; lane++) {
            float slope = grads.at[lane] * args.factor;
            moment.at[lane] = args.momentum * moment.at[lane] + slope;
            to.at[lane] = slope + args.momentum * moment.at[lane];
        }
        store(args.moment + at, moment);
        store(args.direction + at, to);
    });
}
