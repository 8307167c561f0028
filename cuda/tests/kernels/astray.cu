// Blocks whose threads do not meet.
#include "machine.cuh"

struct Nothing {
    u32 words[4];
};

UNISONO_KERNEL(one_leaves, Nothing) {
    if (threadIdx.x != args.words[0]) {
        __syncthreads();
    }
}

UNISONO_KERNEL(two_barriers, Nothing) {
    if (threadIdx.x == args.words[0]) {
        __syncthreads();
    } else {
        __syncthreads();
    }
}
