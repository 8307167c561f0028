// Vectors and rows: biases, norms, tables. A thread owns what it adds to, so sums have one order.
#include "model_arguments.cuh"
#include "model_lanes.cuh"

// Columns whose sums over rows one block forms: peer_windows of a row are loaded together.
constexpr u32 COLUMNS = 32;

// into[column] += the sum over rows of `term`. Threads of a block beyond COLUMNS share the rows of
// each column.
template <class T>
DEVICE void add_over_rows(float* into, u64 rows, u64 columns, T term) {
    __shared__ float sums[512];
    u32 lane = threadIdx.x % COLUMNS, stripe = threadIdx.x / COLUMNS, stripes = blockDim.x / COLUMNS;
#pragma unroll 1
    for (u64 first = u64(blockIdx.x) * COLUMNS; first < columns; first += u64(gridDim.x) * COLUMNS) {
        u64 column = first + lane;
        float sum = 0.0f;
        for (u64 row = stripe; row < rows && column < columns; row += stripes) {
            sum += term(row, column);
        }
        sums[threadIdx.x] = sum;
        __syncthreads();
        if (stripe == 0 && column < columns) {
            for (u32 other = 1; other < stripes; other++) {
                sum += sums[other * COLUMNS + lane];
            }
            into[column] += sum;
        }
        __syncthreads();
    }
}

// Sets every row to `from`.
UNISONO_KERNEL(fill_rows, Rows) {
#pragma unroll 1
    for (u64 at = first_thread(); at < args.rows * args.columns; at += all_threads()) {
        args.to[at] = args.from[at % args.columns];
    }
}

// Adds `from` to every row of `to`.
UNISONO_KERNEL(add_to_rows, Rows) {
#pragma unroll 1
    for (u64 at = first_thread(); at < args.rows * args.columns; at += all_threads()) {
        args.to[at] += args.from[at % args.columns];
    }
}

// Adds every row of `from` to `to`.
UNISONO_KERNEL(add_rows, Rows) {
    add_over_rows(args.to, args.rows, args.columns,
                  [&](u64 row, u64 column) { return args.from[row * args.columns + column]; });
}

UNISONO_KERNEL(layer_norm, Normalize) {
    each_row(args.rows, [&](u64 row) {
        const float* x = args.input + row * args.width;
        float* y = args.values + row * args.width;
        float mean = sum_over(args.width, [&](u64 at) { return x[at]; }) / float(args.width);
        float squares = sum_over(args.width, [&](u64 at) { return (x[at] - mean) * (x[at] - mean); });
        float rate = 1.0f / square_root(squares / float(args.width) + args.epsilon);
        for (u64 at = threadIdx.x; at < args.width; at += blockDim.x) {
            y[at] = (x[at] - mean) * rate * args.gain[at] + args.bias[at];
        }
        if (threadIdx.x == 0) {
            args.moments[2 * row] = mean;
            args.moments[2 * row + 1] = rate;
        }
    });
}

// With x̂ the normalized row and g = dy · gain: dx = (g - mean of g - x̂ · mean of g x̂) /
// deviation.
UNISONO_KERNEL(layer_norm_backward, Normalize) {
    each_row(args.rows, [&](u64 row) {
        const float* x = args.input + row * args.width;
        float* dy = args.values + row * args.width;
        float mean = args.moments[2 * row], rate = args.moments[2 * row + 1], count = float(args.width);
        float level = sum_over(args.width, [&](u64 at) { return dy[at] * args.gain[at]; }) / count;
        float slope = sum_over(args.width, [&](u64 at) {
            return dy[at] * args.gain[at] * ((x[at] - mean) * rate);
        }) / count;
        for (u64 at = threadIdx.x; at < args.width; at += blockDim.x) {
            dy[at] = (dy[at] * args.gain[at] - level - (x[at] - mean) * rate * slope) * rate;
        }
    });
}

// Before `layer_norm_backward`: of_gain += the sum over rows of dy x̂.
UNISONO_KERNEL(layer_norm_backward_gain, Normalize) {
    add_over_rows(args.of_gain, args.rows, args.width, [&](u64 row, u64 column) {
        u64 at = row * args.width + column;
        return args.values[at] * ((args.input[at] - args.moments[2 * row]) * args.moments[2 * row + 1]);
    });
}

UNISONO_KERNEL(rms_norm, Normalize) {
    each_row(args.rows, [&](u64 row) {
        const float* x = args.input + row * args.width;
        float* y = args.values + row * args.width;
        float squares = sum_over(args.width, [&](u64 at) { return x[at] * x[at]; });
        float rate = 1.0f / square_root(squares / float(args.width) + args.epsilon);
        for (u64 at = threadIdx.x; at < args.width; at += blockDim.x) {
            y[at] = x[at] * rate * args.gain[at];
        }
        if (threadIdx.x == 0) {
            args.moments[row] = rate;
        }
    });
}

// With x̂ the normalized row and g = dy · gain: dx = (g - x̂ · mean of g x̂) · rate.
UNISONO_KERNEL(rms_norm_backward, Normalize) {
    each_row(args.rows, [&](u64 row) {
        const float* x = args.input + row * args.width;
        float* dy = args.values + row * args.width;
        float rate = args.moments[row];
        float slope = sum_over(args.width, [&](u64 at) { return dy[at] * args.gain[at] * (x[at] * rate); });
        slope /= float(args.width);
        for (u64 at = threadIdx.x; at < args.width; at += blockDim.x) {
            dy[at] = (dy[at] * args.gain[at] - x[at] * rate * slope) * rate;
        }
    });
}

// Before `rms_norm_backward`: of_gain += the sum over rows of dy x̂.
UNISONO_KERNEL(rms_norm_backward_gain, Normalize) {
    add_over_rows(args.of_gain, args.rows, args.width, [&](u64 row, u64 column) {
        u64 at = row * args.width + column;
        return args.values[at] * (args.input[at] * args.moments[row]);
    });
}

DEVICE bool is_here(const EmbeddingLookup& args, u32 index) { return args.ignores == 0 || index != args.ignored; }

// Row i becomes row indices[i] of the table, or zeros.
UNISONO_KERNEL(embed, EmbeddingLookup) {
#pragma unroll 1
    for (u64 at = first_thread(); at < args.count * args.width; at += all_threads()) {
        u32 index = args.indices[at / args.width];
        args.rows[at] = is_here(args, index) ? args.table[index * args.width + at % args.width] : 0.0f;
    }
}

// Row indices[i] of the table += row i. A block has the rows of the table whose number falls to it,
// so that one thread adds everything that belongs to an element, in order.
UNISONO_KERNEL(embed_backward, EmbeddingLookup) {
#pragma unroll 1
    for (u64 row = 0; row < args.count; row++) {
        u32 index = args.indices[row];
        if (is_here(args, index) && index % gridDim.x == blockIdx.x) {
            for (u64 column = threadIdx.x; column < args.width; column += blockDim.x) {
                args.table[index * args.width + column] += args.rows[row * args.width + column];
            }
        }
    }
}
