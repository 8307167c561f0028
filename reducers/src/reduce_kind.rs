//! The reduction operations, one row each.

use crate::dtype::{DType, DTypeClass};

/// Reduction operations on elements of several ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ReduceKind {
    /// a + b; integers wrap.
    Sum,
    /// a · b; integers wrap.
    Prod,
    /// The smaller. For floats a NaN wins over every number.
    Min,
    /// The larger. For floats a NaN wins over every number.
    Max,
    /// The sum divided by the number of ranks, once, at the end. Integers divide towards zero.
    Avg,
    /// The sum of each rank's elements times that rank's [`Scalar`].
    PreMulSum,
    /// The bitwise and; of truth values the logical one.
    BitAnd,
    /// The bitwise or; of truth values the logical one.
    BitOr,
    /// The bitwise exclusive or; of truth values the logical one.
    BitXor,
    /// The smaller value with its index. Equal values keep the lowest index, and a NaN wins over
    /// every number.
    MinLoc,
    /// The larger value with its index. Equal values keep the lowest index, and a NaN wins over
    /// every number.
    MaxLoc,
    /// A function of the caller, which no kernel knows.
    Custom,
}

impl ReduceKind {
    /// Every operation that has kernels, in the order of their codes.
    pub const ALL: [ReduceKind; 11] = [
        ReduceKind::Sum,
        ReduceKind::Prod,
        ReduceKind::Min,
        ReduceKind::Max,
        ReduceKind::Avg,
        ReduceKind::PreMulSum,
        ReduceKind::BitAnd,
        ReduceKind::BitOr,
        ReduceKind::BitXor,
        ReduceKind::MinLoc,
        ReduceKind::MaxLoc,
    ];

    /// The operations that GPU kernels know. All others run on the CPU only.
    pub const ON_GPU: [ReduceKind; 6] = *Self::ALL.first_chunk().expect("six operations");

    /// Returns true if the operation has kernels for elements of a type.
    #[inline]
    pub const fn is_defined_for(self, dtype: DType) -> bool {
        use DTypeClass::{Bool, Complex, Float, Integer, Located};
        match self {
            ReduceKind::Sum | ReduceKind::Prod | ReduceKind::Avg => {
                matches!(dtype.class(), Integer | Float | Complex)
            }
            ReduceKind::Min | ReduceKind::Max => matches!(dtype.class(), Integer | Float | Bool),
            ReduceKind::PreMulSum => matches!(dtype.class(), Integer | Float),
            ReduceKind::BitAnd | ReduceKind::BitOr | ReduceKind::BitXor => {
                matches!(dtype.class(), Integer | Bool)
            }
            ReduceKind::MinLoc | ReduceKind::MaxLoc => matches!(dtype.class(), Located),
            ReduceKind::Custom => false,
        }
    }

    /// Returns true if GPU kernels know the operation.
    pub const fn is_on_gpu(self) -> bool {
        (self as usize) < Self::ON_GPU.len()
    }

    /// The name users write and tables print, as in nccl-tests.
    pub const fn name(self) -> &'static str {
        match self {
            ReduceKind::Sum => "sum",
            ReduceKind::Prod => "prod",
            ReduceKind::Min => "min",
            ReduceKind::Max => "max",
            ReduceKind::Avg => "avg",
            ReduceKind::PreMulSum => "mulsum",
            ReduceKind::BitAnd => "bitand",
            ReduceKind::BitOr => "bitor",
            ReduceKind::BitXor => "bitxor",
            ReduceKind::MinLoc => "minloc",
            ReduceKind::MaxLoc => "maxloc",
            ReduceKind::Custom => "custom",
        }
    }

    /// The operation whose code (`self as u8`) is `code`.
    pub fn from_code(code: u8) -> Option<ReduceKind> {
        Self::ALL.get(code as usize).copied()
    }
}

impl std::fmt::Display for ReduceKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// The factor of [`ReduceKind::PreMulSum`]; converted to the type in which a reduction accumulates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar {
    /// For floating-point types.
    Float(f64),
    /// For integer types; wraps into the type.
    Int(i64),
    /// For unsigned types whose factor exceeds `i64::MAX`; wraps into the type.
    Uint(u64),
}

/// The last step of a reduction: applied to a complete value before it is rounded and stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostOp {
    /// Store it as it is.
    Identity,
    /// Divide by this number of ranks ([`ReduceKind::Avg`]).
    Divide(u32),
    /// Keep finite values within the type's range: a sum of values that were divided by the number
    /// of all of them, or more, leaves it only by rounding. For floats of 8 and 16 bits.
    Saturate,
    /// Divide by this number of ranks, and multiply by the least power of two that is not below it,
    /// because every source was divided by that power. Then [`PostOp::Saturate`].
    DivideScaled(u32),
}
