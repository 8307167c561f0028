//! How elements are combined, as the caller says it.

use unisono_cuda::{DType, Element, Finish, Op, Scalar};

/// How the elements of all ranks become one.
///
/// 16- and 8-bit floats accumulate in float32 within one reduction and are
/// rounded once for each hop of the algorithm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reduction {
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

impl Reduction {
    /// Multiplies this rank's elements by `factor` before they are summed.
    pub fn pre_mul<T: Element>(factor: T) -> Self {
        let scalar = if T::DTYPE.is_float() {
            Scalar::Float(factor.to_f64())
        } else {
            Scalar::Int(factor.to_f64() as i64)
        };
        Self::PreMulSum(scalar)
    }

    /// Its name in tables and on the wire.
    pub fn op(self) -> Op {
        match self {
            Reduction::Sum => Op::Sum,
            Reduction::Prod => Op::Prod,
            Reduction::Min => Op::Min,
            Reduction::Max => Op::Max,
            Reduction::Avg => Op::Avg,
            Reduction::PreMulSum(_) => Op::PreMulSum,
        }
    }

    /// Whether what is reduced, if anything is, is summed in a wider type and rounded to floats of 8 or 16 bits.
    pub(crate) fn is_narrow(reduction: Option<Self>, dtype: DType) -> bool {
        let makes_new_values = !matches!(reduction, None | Some(Reduction::Min | Reduction::Max));
        makes_new_values && dtype.is_float() && dtype.size() < size_of::<f32>()
    }

    /// The factor to apply when this rank's input is read.
    pub(crate) fn factor(self) -> Option<Scalar> {
        match self {
            Reduction::PreMulSum(scalar) => Some(scalar),
            _ => None,
        }
    }

    /// What is done to complete values, with `ranks` ranks.
    pub(crate) fn finish(self, ranks: usize) -> Finish {
        match self {
            Reduction::Avg => Finish::Divide(ranks as u32),
            _ => Finish::Keep,
        }
    }
}
