// Loops of the kernels for training: over elements four at a time, and over rows a block at a time.
#pragma once

#include "vec16.cuh"

// Neighboring elements, moved 16 bytes at a time if there are so many.
template <u32 COUNT>
struct alignas(COUNT < 4 ? 4 * COUNT : 16) Lanes {
    float at[COUNT];
};

template <u32 COUNT>
struct Width {
    static constexpr u32 LANES = COUNT;
};

template <u32 COUNT>
DEVICE Lanes<COUNT> load(const float* from) {
    return *(const Lanes<COUNT>*)from;
}

template <u32 COUNT>
DEVICE void store(float* to, const Lanes<COUNT>& lanes) {
    *(Lanes<COUNT>*)to = lanes;
}

DEVICE u64 first_thread() { return u64(blockIdx.x) * blockDim.x + threadIdx.x; }
DEVICE u64 all_threads() { return u64(gridDim.x) * blockDim.x; }

// Calls `body` with a width and an index for every element. The width is four if all addresses,
// or'ed together, are aligned for it, and one for the rest.
template <class B>
DEVICE void each(u64 count, u64 addresses, B body) {
    u64 fours = alignment_of(addresses) == 16 ? count / 4 : 0;
#pragma unroll 1
    for (u64 at = first_thread(); at < fours; at += all_threads()) {
        body(Width<4>(), 4 * at);
    }
#pragma unroll 1
    for (u64 at = 4 * fours + first_thread(); at < count; at += all_threads()) {
        body(Width<1>(), at);
    }
}

// Calls `body` with each row whose turn it is in this block.
template <class B>
DEVICE void each_row(u64 rows, B body) {
#pragma unroll 1
    for (u64 row = blockIdx.x; row < rows; row += gridDim.x) {
        body(row);
    }
}

// Joins the values of all threads of a block by `join`, in an order that only its size decides. All
// threads call it. `nothing` is the neutral value.
template <class V, class J>
DEVICE V joined(V value, V nothing, J join) {
    constexpr u32 LEADERS = 16;
    __shared__ V parts[512];
    __shared__ V sums[LEADERS];
    parts[threadIdx.x] = value;
    __syncthreads();
    if (threadIdx.x < LEADERS) {
        V sum = nothing;
        for (u32 at = threadIdx.x; at < blockDim.x; at += LEADERS) {
            sum = join(sum, parts[at]);
        }
        sums[threadIdx.x] = sum;
    }
    __syncthreads();
    V whole = nothing;
    for (u32 at = 0; at < LEADERS && at < blockDim.x; at++) {
        whole = join(whole, sums[at]);
    }
    return whole;
}

template <class V>
DEVICE V block_sum(V value) {
    return joined(value, V(0), [](V one, V other) { return one + other; });
}

DEVICE float block_max(float value) {
    return joined(value, float_of(0xff800000), [](float one, float other) { return one > other ? one : other; });
}

// The sum over the block of `term` of each of `count` indices.
template <class T>
DEVICE float sum_over(u64 count, T term) {
    float sum = 0.0f;
    for (u64 at = threadIdx.x; at < count; at += blockDim.x) {
        sum += term(at);
    }
    return block_sum(sum);
}
