// The arguments of the kernels for training. `src/device/model.rs` has the host's structs. Its
// table of offsets writes `model_abi_offsets.cuh`, which asserts the offsets of these.
#pragma once

#include "target.cuh"

// to = f(one, other), or f(to, one), element by element.
struct Elementwise {
    float* to;
    const float* one;
    const float* other;
    u64 count;
    float factors[2];
};

// Zeroes some of `values` and multiplies the rest by `factor`: the index and the key decide.
struct Dropout {
    float* values;
    u64 count;
    u32 key[2];
    // Threshold: a draw out of 2^32 below it makes a zero.
    u32 least;
    float factor;
};

// Rows of gate | up, and rows half as wide.
struct Gated {
    float* wide;
    float* narrow;
    u64 rows;
    u64 width;
};

// One vector and many rows.
struct Rows {
    float* to;
    const float* from;
    u64 rows;
    u64 columns;
};

// Forward writes `values` and `moments`. Backward finds the gradient of the output in `values`, and
// replaces it by that of the input. Only a layer norm has a bias.
struct Normalize {
    const float* input;
    float* values;
    const float* gain;
    const float* bias;
    // Mean and reciprocal deviation of each row, or its reciprocal root mean square.
    float* moments;
    // Added to.
    float* of_gain;
    u64 rows;
    u64 width;
    float epsilon;
    u32 unused;
};

// Rows of a table by number.
struct EmbeddingLookup {
    float* table;
    const u32* indices;
    float* rows;
    u64 count;
    u64 width;
    // The number of a row that is elsewhere, and zeros here, if `ignores` is not 0.
    u32 ignored;
    u32 ignores;
};

// Rows of queries | keys | values of all heads. Sequences are consecutive.
struct Attention {
    const float* input;
    // Rows of all heads. Backward reads the gradient here.
    float* output;
    // Gradients of the input.
    float* grads;
    // Logarithm of the sum of exponentials: rows of one head, heads of one sequence, sequences.
    float* log_sums;
    // Means in the same order, written by the kernel of queries for that of keys.
    float* means;
    u32 sequences;
    u32 length;
    u32 heads;
    // At most DEPTH_MAX.
    u32 depth;
    float scale;
    u32 unused;
};

// Logits become the gradient of `share` times the sum of the losses.
struct CrossEntropy {
    float* logits;
    const u32* targets;
    // Loss of each row.
    float* losses;
    u64 rows;
    u64 classes;
    float share;
    // Rows of this target do not count, if `ignores` is not 0.
    u32 ignored;
    u32 ignores;
    u32 unused;
};

// Logits of this rank's classes of each row, and the numbers that ranks exchange for it.
struct ShardedCrossEntropy {
    float* logits;
    // Columns of targets here. `columns` for those of other ranks.
    const u32* targets;
    // Maximum over all ranks of each row. Becomes the loss.
    float* max;
    // The sum of the powers of each row, then the logit at the target of each.
    float* sums_and_target_logits;
    u64 rows;
    u64 columns;
    // Columns that are classes; the rest is padding.
    u64 count;
    float share;
    // Rows of this target do not count, if `ignores` is not 0.
    u32 ignored;
    u32 ignores;
    u32 unused;
};

// into = alpha one other + beta into. With beta 0 it is not read. Strides are of rows and of
// columns.
struct Matmul {
    const float* one;
    const float* other;
    float* into;
    u32 rows;
    u32 columns;
    u32 inner;
    float alpha;
    float beta;
    // Stride of the rows of `into`, whose columns are contiguous.
    u32 stride;
    u32 one_strides[2];
    u32 other_strides[2];
};

// A step of AdamW.
struct AdamW {
    float* weights;
    const float* gradient;
    float* first;
    float* second;
    u64 count;
    // Multiplies gradients.
    float factor;
    // 1 - beta of each beta.
    float less[2];
    float beta;
    float rate;
    float root;
    float epsilon;
    // Factor of a weight by weight decay.
    float keep;
};

// Muon takes a gradient into its moment, and says where it would go.
struct MuonMomentum {
    const float* gradient;
    float* moment;
    float* direction;
    u64 count;
    float factor;
    float momentum;
};

// Sums of squares: of each block, then of all blocks.
struct SquareSums {
    const float* values;
    u64 count;
    // One for each block.
    double* partial;
    // Total, written by the second kernel.
    double* total;
    u64 partials;
};

// Multiplies by `scale`, then by what clipping asks for.
struct Clip {
    float* values;
    u64 count;
    // Sum of squares before.
    const double* squares;
    // 0: no clipping.
    double longest;
    float scale;
    u32 unused;
};

// f32 and bfloat16 of the same numbers.
struct Convert {
    float* wide;
    u16* narrow;
    u64 count;
};

constexpr u32 DIMENSIONS_MAX = 8;

// Contiguous elements, and an array of any strides. The last dimension is the fastest.
struct Strided {
    u8* dense;
    u8* array;
    u64 count;
    u64 extents[DIMENSIONS_MAX];
    // Strides in elements.
    u64 strides[DIMENSIONS_MAX];
    u32 dimensions;
    u32 unused;
};

#include "model_abi_offsets.cuh"
