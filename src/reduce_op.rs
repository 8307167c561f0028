//! How elements are combined, as the caller says it.

use unisono_cuda::{DType, Element, PostOp, ReduceKind, Scalar};

/// How the elements of all ranks become one.
///
/// 16- and 8-bit floats accumulate in float32 within one reduction and are
/// rounded once for each hop of the algorithm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ReduceOp {
    /// The sum; integers wrap.
    Sum,
    /// The product; integers wrap.
    Prod,
    /// The smallest; a NaN wins.
    Min,
    /// The largest; a NaN wins.
    Max,
    /// The sum divided by the number of ranks; integers divide towards zero.
    Avg,
    /// The sum of each rank's elements times this rank's factor. Ranks may have different factors.
    PreMulSum(Scalar),
}

impl ReduceOp {
    /// Multiplies this rank's elements by `factor` before they are summed.
    pub fn pre_mul_sum<T: Element>(factor: T) -> Self {
        let scalar = if T::DTYPE.is_float() {
            Scalar::Float(factor.to_f64())
        } else {
            Scalar::Int(factor.to_f64() as i64)
        };
        Self::PreMulSum(scalar)
    }

    /// Its name in tables and on the wire.
    pub fn kind(self) -> ReduceKind {
        match self {
            ReduceOp::Sum => ReduceKind::Sum,
            ReduceOp::Prod => ReduceKind::Prod,
            ReduceOp::Min => ReduceKind::Min,
            ReduceOp::Max => ReduceKind::Max,
            ReduceOp::Avg => ReduceKind::Avg,
            ReduceOp::PreMulSum(_) => ReduceKind::PreMulSum,
        }
    }

    /// Whether what is reduced, if anything is, is summed in a wider type and rounded to floats of 8 or 16 bits.
    pub(crate) fn rounds_narrow_floats(reduction: Option<Self>, dtype: DType) -> bool {
        let makes_new_values = !matches!(reduction, None | Some(ReduceOp::Min | ReduceOp::Max));
        makes_new_values && dtype.is_float() && dtype.size() < size_of::<f32>()
    }

    /// The factor to apply when this rank's input is read.
    pub(crate) fn factor(self) -> Option<Scalar> {
        match self {
            ReduceOp::PreMulSum(scalar) => Some(scalar),
            _ => None,
        }
    }

    /// What is done to complete values, with `ranks` ranks.
    pub(crate) fn post_op(self, ranks: usize) -> PostOp {
        match self {
            ReduceOp::Avg => PostOp::Divide(ranks as u32),
            _ => PostOp::Identity,
        }
    }
}
