// Cross entropy of classes, a block a row.
#include "model_arguments.cuh"
#include "model_lanes.cuh"
#include "model_math.cuh"

DEVICE float greatest_of(const float* x, u64 count) {
    float most = float_of(0xff800000);
    for (u64 at = threadIdx.x; at < count; at += blockDim.x) {
        most = x[at] > most ? x[at] : most;
    }
    return block_greatest(most);
}

// Logits become (softmax - one at the target) · share, and `losses` says -ln softmax at the target.
UNISONO_KERNEL(cross_entropy, Losses) {
    each_row(args.rows, [&](u64 row) {
        float* x = args.logits + row * args.classes;
        u32 target = args.targets[row];
        bool counts = args.ignores == 0 || target != args.ignored;
        float most = greatest_of(x, args.classes);
        float sum = sum_over(args.classes, [&](u64 at) { return exponential(x[at] - most); });
        if (threadIdx.x == 0) {
            args.losses[row] = counts ? most - x[target] + logarithm(sum) : 0.0f;
        }
        __syncthreads();
        float factor = counts ? args.share / sum : 0.0f;
        for (u64 at = threadIdx.x; at < args.classes; at += blockDim.x) {
            float one = counts && at == target ? args.share : 0.0f;
            x[at] = exponential(x[at] - most) * factor - one;
        }
    });
}

// Where each rank has some of the classes: `greatest` of its own.
UNISONO_KERNEL(class_greatest, Classes) {
    each_row(args.rows, [&](u64 row) {
        float most = greatest_of(args.logits + row * args.columns, args.count);
        if (threadIdx.x == 0) {
            args.greatest[row] = most;
        }
    });
}

// Logits become powers of e, each less the greatest of its row, and padding zeros; `both` gets their sum, and the logit at the
// target if that is here.
UNISONO_KERNEL(class_powers, Classes) {
    each_row(args.rows, [&](u64 row) {
        float* x = args.logits + row * args.columns;
        u32 target = args.targets[row];
        float most = args.greatest[row];
        if (threadIdx.x == 0) {
            args.both[args.rows + row] = target < args.count ? x[target] : 0.0f;
        }
        __syncthreads();
        float sum = sum_over(args.count, [&](u64 at) { return x[at] = exponential(x[at] - most); });
        for (u64 at = args.count + threadIdx.x; at < args.columns; at += blockDim.x) {
            x[at] = 0.0f;
        }
        if (threadIdx.x == 0) {
            args.both[row] = sum;
        }
    });
}

// With `both` of all ranks, powers become (softmax - one at the target) · share, and `greatest` -ln softmax at the target.
UNISONO_KERNEL(class_slopes, Classes) {
    each_row(args.rows, [&](u64 row) {
        float* x = args.logits + row * args.columns;
        u32 target = args.targets[row];
        bool counts = args.ignores == 0 || target != args.ignored;
        float sum = args.both[row], factor = counts ? args.share / sum : 0.0f;
        if (threadIdx.x == 0) {
            float loss = args.greatest[row] + (logarithm(sum) - args.both[args.rows + row]);
            args.greatest[row] = counts ? loss : 0.0f;
        }
        for (u64 at = threadIdx.x; at < args.columns; at += blockDim.x) {
            float one = counts && at == target ? args.share : 0.0f;
            x[at] = x[at] * factor - one;
        }
    });
}
