// Kernels that do what none may: threads that do not meet, a store outside of its memory.
#include "target.cuh"

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

struct Range {
    u8* start;
    u64 bytes;
};

UNISONO_KERNEL(oversteps, Range) {
    store_data(args.start + args.bytes, u8(0));
}
