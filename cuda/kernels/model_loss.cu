// Cross entropy of classes, a block a row.
#include "model_arguments.cuh"
#include "model_lanes.cuh"
#include "model_math.cuh"

// Logits become (softmax - one at the target) · share, and `losses` says -ln softmax at the target.
UNISONO_KERNEL(cross_entropy, Losses) {
    each_row(args.rows, [&](u64 row) {
        float* x = args.logits + row * args.classes;
        u32 target = args.targets[row];
        bool counts = args.ignores == 0 || target != args.ignored;
        float most = float_of(0xff800000);
        for (u64 at = threadIdx.x; at < args.classes; at += blockDim.x) {
            most = x[at] > most ? x[at] : most;
        }
        most = block_greatest(most);
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
