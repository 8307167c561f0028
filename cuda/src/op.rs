//! The reduction operations, one row each.

/// How elements of several ranks become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Op {
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

impl Op {
    /// Every operation, in the order of their codes.
    pub const ALL: [Op; 6] = [Op::Sum, Op::Prod, Op::Min, Op::Max, Op::Avg, Op::PreMulSum];

    /// The name users write and tables print, as in nccl-tests.
    pub const fn name(self) -> &'static str {
        match self {
            Op::Sum => "sum",
            Op::Prod => "prod",
            Op::Min => "min",
            Op::Max => "max",
            Op::Avg => "avg",
            Op::PreMulSum => "mulsum",
        }
    }

    /// The operation whose code (`self as u8`) is `code`.
    pub fn from_code(code: u8) -> Option<Op> {
        Self::ALL.get(code as usize).copied()
    }
}

impl std::fmt::Display for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// The factor of [`Op::PreMulSum`]; converted to the type in which a reduction accumulates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar {
    /// For floating-point types.
    Float(f64),
    /// For integer types; wraps into the type.
    Int(i64),
}

/// What is done to a value when its reduction is complete, before it is rounded and stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// Store it as it is.
    Keep,
    /// Divide by this number of ranks ([`Op::Avg`]).
    Divide(u32),
}
