// A matrix product by tiles, for where there is no library of them.
#include "model_arguments.cuh"
#include "model_lanes.cuh"

// Rows and columns of a tile of the result, the inner extent of a step, and rows and columns of one
// thread.
constexpr u32 TILE = 64;
constexpr u32 STEP = 16;
constexpr u32 OWN = 8;
// Threads along a side. Every block has SIDE × SIDE threads.
constexpr u32 SIDE = TILE / OWN;
// One more column, so that rows begin in different banks.
using Panel = float[STEP][TILE + 1];

// Elements of a factor whose outer index is of the result and whose inner index is added over.
struct Factor {
    const float* from;
    u32 outer, inner;
    u32 outer_stride, inner_stride;

    // Copies from (first, start) on to `panel`, and zeros beyond the ends. Neighboring threads load
    // neighboring elements.
    DEVICE void fetch(Panel& panel, u32 first, u32 start) const {
        for (u32 at = threadIdx.x; at < TILE * STEP; at += blockDim.x) {
            u32 row = inner_stride == 1 ? at / STEP : at % TILE;
            u32 step = inner_stride == 1 ? at % STEP : at / TILE;
            bool is_in = first + row < outer && start + step < inner;
            u64 place = u64(first + row) * outer_stride + u64(start + step) * inner_stride;
            panel[step][row] = is_in ? from[place] : 0.0f;
        }
    }
};

// Adds the products of one step to what a thread has of the tile.
DEVICE void add_step(float (&sums)[OWN][OWN], const Panel& one, const Panel& other, u32 top, u32 left) {
#pragma unroll
    for (u32 step = 0; step < STEP; step++) {
        float row[OWN], column[OWN];
#pragma unroll
        for (u32 at = 0; at < OWN; at++) {
            row[at] = one[step][top + at * SIDE];
            column[at] = other[step][left + at * SIDE];
        }
#pragma unroll
        for (u32 at = 0; at < OWN * OWN; at++) {
            sums[at / OWN][at % OWN] = fused(row[at / OWN], column[at % OWN], sums[at / OWN][at % OWN]);
        }
    }
}

DEVICE void put(const Matmul& args, u64 row, u64 column, float sum) {
    if (row < args.rows && column < args.columns) {
        float& to = args.into[row * args.stride + column];
        to = args.beta == 0.0f ? args.alpha * sum : args.alpha * sum + args.beta * to;
    }
}

UNISONO_KERNEL(matmul, Matmul) {
    __shared__ Panel one, other;
    u32 top = threadIdx.x / SIDE, left = threadIdx.x % SIDE;
    Factor rows = {args.one, args.rows, args.inner, args.one_strides[0], args.one_strides[1]};
    Factor columns = {args.other, args.columns, args.inner, args.other_strides[1], args.other_strides[0]};
    u32 across = (args.columns + TILE - 1) / TILE, down = (args.rows + TILE - 1) / TILE;
    each_row(u64(across) * down, [&](u64 tile) {
        u32 first_row = u32(tile / across) * TILE, first_column = u32(tile % across) * TILE;
        float sums[OWN][OWN] = {};
#pragma unroll 1
        for (u32 start = 0; start < args.inner; start += STEP) {
            rows.fetch(one, first_row, start);
            columns.fetch(other, first_column, start);
            __syncthreads();
            add_step(sums, one, other, top, left);
            __syncthreads();
        }
#pragma unroll
        for (u32 at = 0; at < OWN * OWN; at++) {
            put(args, first_row + top + at / OWN * SIDE, first_column + left + at % OWN * SIDE,
                sums[at / OWN][at % OWN]);
        }
    });
}
