// Cross entropy of classes, a block a row.
#include "model_arguments.cuh"
#include "model_lanes.cuh"
#include "model_math.cuh"

DEVICE float max_of(const float* x, u64 count) {
    float most = float_of(0xff800000);
    for (u64 at = threadIdx.x; at < count; at += blockDim.x) {
        most = x[at] > most ? x[at] : most;
    }
    return block_max(most);
}

// Logits become (softmax - one at the target) · share, and `losses` says -ln softmax at the target.
UNISONO_KERNEL(cross_entropy, CrossEntropy) {
    each_row(args.rows, [&](u64 row) {
        float* x = args.logits + row * args.classes;
        u32 target = args.targets[row];
        bool counts = args.ignores == 0 || target != args.ignored;
        float most = max_of(x, args.classes);
        float sum = sum_over(args.classes, [&](u64 at) { return fast_exp(x[at] - most); });
        if (threadIdx.x == 0) {
            args.losses[row] = counts ? most - x[target] + fast_log(sum) : 0.0f;
        }
        __syncthreads();
        float factor = counts ? args.share / sum : 0.0f;
        for (u64 at = threadIdx.x; at < args.classes; at += blockDim.x) {
            float one = counts && at == target ? args.share : 0.0f;
            x[at] = fast_exp(x[at] - most) * factor - one;
        }
    });
}

// Each rank has some of the classes: computes the maximum of its own.
UNISONO_KERNEL(class_max, ShardedCrossEntropy) {
    each_row(args.rows, [&](u64 row) {
        float most = max_of(args.logits + row * args.columns, args.count);
        if (threadIdx.x == 0) {
            args.max[row] = most;
        }
    });
}

// Logits become exponentials, each less the max of its row, and padding becomes zeros.
// `sums_and_target_logits` gets their sum, and the logit at the target if it is here.
UNISONO_KERNEL(class_exp, ShardedCrossEntropy) {
    each_row(args.rows, [&](u64 row) {
        float* x = args.logits + row * args.columns;
        u32 target = args.targets[row];
        float most = args.max[row];
        if (threadIdx.x == 0) {
            args.sums_and_target_logits[args.rows + row] = target < args.count ? x[target] : 0.0f;
        }
        __syncthreads();
        float sum = sum_over(args.count, [&](u64 at) { return x[at] = fast_exp(x[at] - most); });
        for (u64 at = args.count + threadIdx.x; at < args.columns; at += blockDim.x) {
            x[at] = 0.0f;
        }
        if (threadIdx.x == 0) {
            args.sums_and_target_logits[row] = sum;
        }
    });
}

// With `sums_and_target_logits` of all ranks, exponentials become (softmax - one at the target) ·
// share, and `max` becomes -ln softmax at the target.
UNISONO_KERNEL(class_backward, ShardedCrossEntropy) {
    each_row(args.rows, [&](u64 row) {
        float* x = args.logits + row * args.columns;
        u32 target = args.targets[row];
        bool counts = args.ignores == 0 || target != args.ignored;
        float sum = args.sums_and_target_logits[row], factor = counts ? args.share / sum : 0.0f;
        if (threadIdx.x == 0) {
            float loss = args.max[row] + (fast_log(sum) - args.sums_and_target_logits[args.rows + row]);
            args.max[row] = counts ? loss : 0.0f;
        }
        for (u64 at = threadIdx.x; at < args.columns; at += blockDim.x) {
            float one = counts && at == target ? args.share : 0.0f;
            x[at] = x[at] * factor - one;
        }
    });
}
