//! The argument structs of the trainer's kernels (`kernels/model_*.cu`).

use super::table::arguments;

arguments! {
    /// Arguments of `gelu_*` and `weighted_sum`: element by element a function of one or two.
    Elementwise: 40 {
        /// Result. It may be one of the operands.
        0 => to: *mut f32,
        /// First operand.
        8 => one: *const f32,
        /// Second operand. For a backward kernel, the gradient of the output.
        16 => other: *const f32,
        /// Number of elements of each.
        24 => count: u64,
        /// Factors of both operands, for `weighted_sum`.
        32 => factors: [f32; 2],
    }

    /// Arguments of `dropout`.
    Dropout: 32 {
        /// Values that become 0 or are multiplied.
        0 => values: *mut f32,
        /// Number of elements.
        8 => count: u64,
        /// Decides which.
        16 => key: [u32; 2],
        /// Threshold: a draw out of 2³² below it makes a zero.
        24 => least: u32,
        /// Multiplies what is kept.
        28 => factor: f32,
    }

    /// Arguments of `swiglu` and `swiglu_backward`.
    Gated: 32 {
        /// Rows of gate | up. Backward reads them, and overwrites them by their gradients.
        0 => wide: *mut f32,
        /// Rows half as wide: the output, or its gradient.
        8 => narrow: *mut f32,
        /// Rows of both.
        16 => rows: u64,
        /// Columns of `narrow`.
        24 => width: u64,
    }

    /// Arguments of `fill_rows` and `add_rows`.
    Rows: 32 {
        /// All rows, or the vector that they are added to.
        0 => to: *mut f32,
        /// The vector that they become, or all rows.
        8 => from: *const f32,
        /// Number of rows.
        16 => rows: u64,
        /// Columns of each row, and elements of the vector.
        24 => columns: u64,
    }

    /// Arguments of `layer_norm`, `rms_norm`, and what goes back through them.
    Normalize: 72 {
        /// Rows.
        0 => input: *const f32,
        /// Forward: the output. Backward: the gradient of the output, which becomes that of the
        /// input.
        8 => values: *mut f32,
        /// A factor of each column.
        16 => gain: *const f32,
        /// A summand of each column; RMS norms have none.
        24 => bias: *const f32,
        /// Mean and reciprocal deviation of each row, or its reciprocal root mean square.
        32 => moments: *mut f32,
        /// Gradient of the gain, for `*_gain`. The kernel adds to it.
        40 => of_gain: *mut f32,
        /// Number of rows.
        48 => rows: u64,
        /// Columns.
        56 => width: u64,
        /// Keeps from dividing by 0.
        64 => epsilon: f32,
        /// Room that has no meaning.
        68 => unused: u32,
    }

    /// Arguments of `embed` and `embed_backward`.
    EmbeddingLookup: 48 {
        /// Vectors. Backward adds their gradients here.
        0 => table: *mut f32,
        /// Rows of the table.
        8 => indices: *const u32,
        /// The vector of each index, or its gradient.
        16 => rows: *mut f32,
        /// Indices.
        24 => count: u64,
        /// Elements of a vector.
        32 => width: u64,
        /// Index without a row or class, such as padding.
        40 => ignored: u32,
        /// Not 0: indices equal to `ignored` are skipped.
        44 => ignores: u32,
    }

    /// Arguments of `attention*`.
    Attention: 64 {
        /// Rows of queries | keys | values, each with all heads.
        0 => input: *const f32,
        /// Rows of all heads: written by forward, and the gradient that backward reads.
        8 => output: *mut f32,
        /// The gradient of the input.
        16 => grads: *mut f32,
        /// Logarithm of the sum of exponentials: rows of one head, heads of one sequence,
        /// sequences.
        24 => log_sums: *mut f32,
        /// As many numbers, passed from the kernel for queries to the kernel for keys.
        32 => means: *mut f32,
        /// Number of consecutive sequences.
        40 => sequences: u32,
        /// Rows of each.
        44 => length: u32,
        /// Heads of each row.
        48 => heads: u32,
        /// Columns of a head, at most [`Attention::DEPTH_MAX`].
        52 => depth: u32,
        /// Multiplies scores.
        56 => scale: f32,
        /// Room that has no meaning.
        60 => unused: u32,
    }

    /// Arguments of `cross_entropy`.
    CrossEntropy: 56 {
        /// Become their gradient.
        0 => logits: *mut f32,
        /// The class of each row.
        8 => targets: *const u32,
        /// The loss of each row.
        16 => losses: *mut f32,
        /// Number of rows.
        24 => rows: u64,
        /// Columns.
        32 => classes: u64,
        /// Weight of a row's loss.
        40 => share: f32,
        /// Index without a row or class, such as padding.
        44 => ignored: u32,
        /// Not 0: targets equal to `ignored` are skipped.
        48 => ignores: u32,
        /// Room that has no meaning.
        52 => unused: u32,
    }

    /// Arguments of `class_max`, `class_exp` and `class_backward`: cross entropy where each rank
    /// has some of the classes.
    ShardedCrossEntropy: 72 {
        /// Become powers, then their gradient.
        0 => logits: *mut f32,
        /// Column of the target class of each row, or `columns` if another rank has the class.
        8 => targets: *const u32,
        /// Largest logit of each row. Becomes the loss of the row.
        16 => max: *mut f32,
        /// The sum of the powers of each row, then the logit at the target of each.
        24 => sums_and_target_logits: *mut f32,
        /// Number of rows.
        32 => rows: u64,
        /// Columns of a row.
        40 => columns: u64,
        /// Number of columns that are classes. The rest is padding.
        48 => count: u64,
        /// Weight of a row's loss.
        56 => share: f32,
        /// Index without a row or class, such as padding.
        60 => ignored: u32,
        /// Not 0: targets equal to `ignored` are skipped.
        64 => ignores: u32,
        /// Room that has no meaning.
        68 => unused: u32,
    }

    /// Arguments of `matmul`: into = alpha · one · other + beta · into.
    Matmul: 64 {
        /// Rows × inner.
        0 => one: *const f32,
        /// Inner × columns.
        8 => other: *const f32,
        /// Rows × columns.
        16 => into: *mut f32,
        /// Rows of the result.
        24 => rows: u32,
        /// Columns of the result.
        28 => columns: u32,
        /// Inner extent, which products are summed over.
        32 => inner: u32,
        /// Multiplies the product.
        36 => alpha: f32,
        /// Factor of the old values. They are not read if it is 0.
        40 => beta: f32,
        /// Distance of the rows of the result.
        44 => stride: u32,
        /// Distances of neighbors, of rows and of columns.
        48 => one_strides: [u32; 2],
        /// The same of the other.
        56 => other_strides: [u32; 2],
    }

    /// Arguments of `adamw`.
    AdamW: 72 {
        /// Weights that take the step.
        0 => weights: *mut f32,
        /// Gradient of the loss.
        8 => gradient: *const f32,
        /// First moments.
        16 => first: *mut f32,
        /// Second moments.
        24 => second: *mut f32,
        /// Number of elements of each.
        32 => count: u64,
        /// Multiplies gradients.
        40 => factor: f32,
        /// 1 - β of each β.
        44 => less: [f32; 2],
        /// The second β.
        52 => beta: f32,
        /// The rate, less the first moments' bias.
        56 => rate: f32,
        /// The root of the second moments' bias.
        60 => root: f32,
        /// Added to the root of the second moment.
        64 => epsilon: f32,
        /// Factor of a weight by weight decay.
        68 => keep: f32,
    }

    /// Arguments of `muon_momentum`.
    MuonMomentum: 40 {
        /// Gradient of the loss.
        0 => gradient: *const f32,
        /// Moment, which the kernel updates.
        8 => moment: *mut f32,
        /// Direction of the step.
        16 => direction: *mut f32,
        /// Number of elements of each.
        24 => count: u64,
        /// Multiplies gradients.
        32 => factor: f32,
        /// Factor of the old moment.
        36 => momentum: f32,
    }

    /// Arguments of `squares` and `total`.
    SquareSums: 40 {
        /// Values to square.
        0 => values: *const f32,
        /// Number of values.
        8 => count: u64,
        /// The sum of each block of the first launch.
        16 => partial: *mut f64,
        /// The sum of them all.
        24 => total: *mut f64,
        /// Number of blocks that summed.
        32 => partials: u64,
    }

    /// Arguments of `scale_and_clip`.
    Clip: 40 {
        /// Values to multiply.
        0 => values: *mut f32,
        /// Number of values.
        8 => count: u64,
        /// Sum of squares of the whole gradient, before it is scaled.
        16 => squares: *const f64,
        /// The longest that it may be, scaled; 0: any length.
        24 => longest: f64,
        /// Multiplies it before it is clipped.
        32 => scale: f32,
        /// Room that has no meaning.
        36 => unused: u32,
    }

    /// Arguments of `widen` and `narrow`.
    Convert: 24 {
        /// Values as f32.
        0 => wide: *mut f32,
        /// Values as bfloat16.
        8 => narrow: *mut u16,
        /// Number of elements of each.
        16 => count: u64,
    }

    /// Arguments of `pack_*` and `unpack_*`, by the bytes of an element.
    Strided: 160 {
        /// Contiguous elements.
        0 => dense: *mut u8,
        /// First element of the array.
        8 => array: *mut u8,
        /// Elements.
        16 => count: u64,
        /// Extents. The last dimension is the fastest.
        24 => extents: [u64; Strided::DIMENSIONS_MAX],
        /// Distances of neighbors in elements.
        88 => strides: [u64; Strided::DIMENSIONS_MAX],
        /// Number of dimensions in use.
        152 => dimensions: u32,
        /// Room that has no meaning.
        156 => unused: u32,
    }
}

impl Attention {
    /// Largest number of columns of a head.
    pub const DEPTH_MAX: usize = 128;
    /// Threads of every block.
    pub const THREADS: u32 = 128;
}

impl Matmul {
    /// Threads of every block.
    pub const THREADS: u32 = 64;
}

impl Strided {
    /// Dimensions that an array can have.
    pub const DIMENSIONS_MAX: usize = 8;
}
