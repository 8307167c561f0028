//! The reduction operations, one row each.

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
}

impl ReduceKind {
    /// Every operation, in the order of their codes.
    pub const ALL: [ReduceKind; 6] = [
        ReduceKind::Sum,
        ReduceKind::Prod,
        ReduceKind::Min,
        ReduceKind::Max,
        ReduceKind::Avg,
        ReduceKind::PreMulSum,
    ];

    /// The name users write and tables print, as in nccl-tests.
    pub const fn name(self) -> &'static str {
        match self {
            ReduceKind::Sum => "sum",
            ReduceKind::Prod => "prod",
            ReduceKind::Min => "min",
            ReduceKind::Max => "max",
            ReduceKind::Avg => "avg",
            ReduceKind::PreMulSum => "mulsum",
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
}
