//! Reduction operators, which combine the elements of all ranks.

mod custom;

pub use custom::CustomOp;

use crate::error::{Error, Result};
use unisono_reducers::{DType, DTypeClass, Element, PostOp, ReduceKind, Scalar, as_bytes};

/// Selects how the elements of all ranks are combined.
///
/// Floats of 8 and 16 bits are accumulated in float32. Partial sums that travel are rounded once
/// per hop. The error is bounded for each type and operator. An average of [`f16`](crate::f16) or
/// of 8-bit floats never leaves the range of the type. See [Rounding and
/// range](https://github.com/unisono-rs/unisono/blob/main/docs/book/src/numerics.md).
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum ReduceOp {
    /// The sum. Integers wrap around.
    Sum,
    /// The product. Integers wrap around.
    Prod,
    /// The minimum. If an element is NaN, the result is NaN.
    Min,
    /// The maximum. If an element is NaN, the result is NaN.
    Max,
    /// The sum divided by the number of ranks. The division of integers rounds toward zero.
    ///
    /// Integers are summed in their own type, and the sum wraps around before the division. For
    /// example, if two ranks give 100 as `i8`, the average is -28. Use a wider type for large sums.
    Avg,
    /// The sum of all elements, each multiplied by a factor of its rank. Ranks may give different
    /// factors.
    ///
    /// [`ReduceOp::pre_mul_sum`] makes this operator from an element. If the buffer has an integer
    /// type that cannot represent the factor, the call returns
    /// [`ErrorKind::InvalidUsage`](crate::ErrorKind::InvalidUsage).
    PreMulSum(Scalar),
    /// The bitwise AND of integers, or the logical AND of [`Bool`](crate::Bool).
    BitAnd,
    /// The bitwise OR of integers, or the logical OR of [`Bool`](crate::Bool).
    BitOr,
    /// The bitwise XOR of integers, or the logical XOR of [`Bool`](crate::Bool).
    BitXor,
    /// The smallest value with its index, of [`Located`](crate::Located) elements.
    MinLoc,
    /// The largest value with its index, of [`Located`](crate::Located) elements.
    MaxLoc,
    /// A function of the caller.
    Custom(CustomOp),
}

impl ReduceOp {
    /// Multiplies this rank's elements by `factor` before they are summed.
    ///
    /// The factor keeps all its bits, even as a 64-bit integer. Products and sums of integers wrap
    /// around.
    ///
    /// ```
    /// use unisono::{Communicator, ReduceOp};
    ///
    /// let comm = Communicator::local(1)?.remove(0);
    /// let mut values = [1u64, 0];
    /// comm.all_reduce(&mut values, ReduceOp::pre_mul_sum(u64::MAX - 1))?;
    /// assert_eq!(values, [u64::MAX - 1, 0]);
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn pre_mul_sum<T: Element>(factor: T) -> Self {
        Self::PreMulSum(scalar_of(factor))
    }

    /// Returns the operator of a kind, or `None` if it needs a factor or a function.
    ///
    /// ```
    /// use unisono::{ReduceKind, ReduceOp};
    ///
    /// assert_eq!(ReduceOp::of_kind(ReduceKind::Max), Some(ReduceOp::Max));
    /// assert_eq!(ReduceOp::of_kind(ReduceKind::PreMulSum), None);
    /// ```
    pub fn of_kind(kind: ReduceKind) -> Option<Self> {
        Some(match kind {
            ReduceKind::Sum => ReduceOp::Sum,
            ReduceKind::Prod => ReduceOp::Prod,
            ReduceKind::Min => ReduceOp::Min,
            ReduceKind::Max => ReduceOp::Max,
            ReduceKind::Avg => ReduceOp::Avg,
            ReduceKind::BitAnd => ReduceOp::BitAnd,
            ReduceKind::BitOr => ReduceOp::BitOr,
            ReduceKind::BitXor => ReduceOp::BitXor,
            ReduceKind::MinLoc => ReduceOp::MinLoc,
            ReduceKind::MaxLoc => ReduceOp::MaxLoc,
            ReduceKind::PreMulSum | ReduceKind::Custom => return None,
        })
    }

    /// Returns the kind of the operator, without its factor.
    pub fn kind(self) -> ReduceKind {
        match self {
            ReduceOp::Sum => ReduceKind::Sum,
            ReduceOp::Prod => ReduceKind::Prod,
            ReduceOp::Min => ReduceKind::Min,
            ReduceOp::Max => ReduceKind::Max,
            ReduceOp::Avg => ReduceKind::Avg,
            ReduceOp::PreMulSum(_) => ReduceKind::PreMulSum,
            ReduceOp::BitAnd => ReduceKind::BitAnd,
            ReduceOp::BitOr => ReduceKind::BitOr,
            ReduceOp::BitXor => ReduceKind::BitXor,
            ReduceOp::MinLoc => ReduceKind::MinLoc,
            ReduceOp::MaxLoc => ReduceKind::MaxLoc,
            ReduceOp::Custom(_) => ReduceKind::Custom,
        }
    }

    /// Returns true if `reduction` sums in a wider type and rounds to floats of 8 or 16 bits.
    pub(crate) fn rounds_narrow_floats(reduction: Option<Self>, dtype: DType) -> bool {
        let makes_new_values = !matches!(reduction, None | Some(ReduceOp::Min | ReduceOp::Max));
        makes_new_values && dtype.is_float() && dtype.size() < size_of::<f32>()
    }

    /// Returns the factor by which this rank's input is multiplied when it is read.
    ///
    /// An average of a type with a narrow range has a factor, unless its sums are rounded only
    /// once. Without the factor, partial sums that are stored in the type could leave its range
    /// although the average is within it. So the inputs are first divided by a power of two, which
    /// is exact down to the type's smallest numbers.
    pub(crate) fn factor(self, dtype: DType, ranks: usize, rounds_once: bool) -> Option<Scalar> {
        match self {
            ReduceOp::PreMulSum(scalar) => Some(scalar),
            ReduceOp::Avg if has_narrow_range(dtype) && !rounds_once => {
                Some(Scalar::Float(1.0 / ranks.next_power_of_two() as f64))
            }
            _ => None,
        }
    }

    /// Returns the function of the caller, if the operator is such a function.
    #[inline]
    pub(crate) fn custom(self) -> Option<CustomOp> {
        match self {
            ReduceOp::Custom(custom) => Some(custom),
            _ => None,
        }
    }

    /// Returns true if operands must be combined in rank order.
    #[inline]
    pub(crate) fn needs_rank_order(self) -> bool {
        matches!(self, ReduceOp::Custom(custom) if !custom.is_commutative())
    }

    /// Returns true if [`ReduceOp::for_dtype`] may refuse or change the operator.
    #[inline]
    pub(crate) fn needs_check(self, dtype: DType) -> bool {
        self.kind() as u8 > ReduceKind::Avg as u8 || !dtype.is_on_gpu()
    }

    /// Returns the operator for elements of `dtype`. A factor is converted to that type.
    ///
    /// # Errors
    /// Fails if the operator is not defined for the type, or if an integer type cannot represent
    /// the factor.
    #[inline]
    pub(crate) fn for_dtype(self, dtype: DType) -> Result<Self> {
        match self {
            ReduceOp::PreMulSum(scalar) if dtype.class() == DTypeClass::Integer => {
                integer_factor(scalar, dtype)
            }
            ReduceOp::Custom(custom) if custom.dtype() == dtype => Ok(self),
            op if op.kind().is_defined_for(dtype) => Ok(op),
            op => Err(op.undefined_error(dtype)),
        }
    }

    #[cold]
    fn undefined_error(self, dtype: DType) -> Error {
        if let ReduceOp::Custom(custom) = self {
            let (name, own_dtype) = (custom.name(), custom.dtype());
            return Error::invalid_usage(format!("{name} reduces elements of {own_dtype}, not of {dtype}"));
        }
        let kind = self.kind();
        let defined = ReduceKind::ALL.into_iter().filter(|kind| kind.is_defined_for(dtype));
        let names = defined.map(ReduceKind::name).collect::<Vec<_>>().join(", ");
        Error::invalid_usage(format!("{kind} is not defined for {dtype}, which has {names}"))
    }

    /// Returns two operations for a group of `ranks` ranks: one for partial values and one for
    /// complete values.
    pub(crate) fn post_ops(self, dtype: DType, ranks: usize, rounds_once: bool) -> [PostOp; 2] {
        match (self, self.factor(dtype, ranks, rounds_once)) {
            (ReduceOp::Avg, None) => [PostOp::Identity, PostOp::Divide(ranks as u32)],
            (ReduceOp::Avg, Some(_)) => [PostOp::Saturate, PostOp::DivideScaled(ranks as u32)],
            _ => [PostOp::Identity; 2],
        }
    }
}

/// Returns true if the sum of a few numbers of the type may be outside its range, although it is
/// within the range of the type in which they are summed.
fn has_narrow_range(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::F8E4M3 | DType::F8E5M2)
}

/// Returns an element as a factor that keeps all its bits.
fn scalar_of<T: Element>(factor: T) -> Scalar {
    if T::DTYPE.class() != DTypeClass::Integer {
        return Scalar::Float(factor.to_f64());
    }
    let mut word = [0u8; 8];
    let bytes = as_bytes(std::slice::from_ref(&factor));
    // The library runs only on little-endian machines, where the low bytes come first.
    word[..bytes.len()].copy_from_slice(bytes);
    let (bits, unused) = (u64::from_le_bytes(word), 64 - 8 * bytes.len() as u32);
    match integer_range(T::DTYPE).0 {
        0 => Scalar::Uint(bits),
        _ => Scalar::Int((bits << unused) as i64 >> unused),
    }
}

/// Returns a pre-multiplied sum whose factor is an integer of `dtype`.
#[cold]
fn integer_factor(scalar: Scalar, dtype: DType) -> Result<ReduceOp> {
    let (min, max) = integer_range(dtype);
    let (value, shown) = match scalar {
        Scalar::Int(factor) => (Some(i128::from(factor)), factor.to_string()),
        Scalar::Uint(factor) => (Some(i128::from(factor)), factor.to_string()),
        // Every integer within the range of a 64-bit type converts exactly.
        Scalar::Float(factor) => ((factor.fract() == 0.0).then_some(factor as i128), factor.to_string()),
    };
    match value.filter(|value| (min..=max).contains(value)) {
        Some(value) if min == 0 => Ok(ReduceOp::PreMulSum(Scalar::Uint(value as u64))),
        Some(value) => Ok(ReduceOp::PreMulSum(Scalar::Int(value as i64))),
        None => Err(Error::invalid_usage(format!(
            "the factor {shown} of a pre-multiplied sum is not an integer from {min} to {max}, as {dtype} requires"
        ))),
    }
}

/// Returns the smallest and the largest value of an integer type.
fn integer_range(dtype: DType) -> (i128, i128) {
    let bits = 8 * dtype.size() as u32;
    match dtype {
        DType::U8 | DType::U32 | DType::U64 => (0, (1 << bits) - 1),
        _ => (-(1 << (bits - 1)), (1 << (bits - 1)) - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pre_mul_sum_keeps_all_bits_of_integers() {
        for factor in [i64::MIN, i64::MIN + 1, -1, 0, (1 << 53) + 1, i64::MAX] {
            assert_eq!(ReduceOp::pre_mul_sum(factor), ReduceOp::PreMulSum(Scalar::Int(factor)));
        }
        for factor in [0, (1 << 53) + 1, u64::MAX - 1, u64::MAX] {
            assert_eq!(ReduceOp::pre_mul_sum(factor), ReduceOp::PreMulSum(Scalar::Uint(factor)));
        }
        assert_eq!(ReduceOp::pre_mul_sum(-3i8), ReduceOp::PreMulSum(Scalar::Int(-3)));
        assert_eq!(ReduceOp::pre_mul_sum(u32::MAX), ReduceOp::PreMulSum(Scalar::Uint(u32::MAX.into())));
        assert_eq!(ReduceOp::pre_mul_sum(0.1f32), ReduceOp::PreMulSum(Scalar::Float(0.1f32.into())));
    }

    #[test]
    fn for_dtype_refuses_factors_the_type_lacks() {
        let refused = [
            (Scalar::Float(0.5), DType::I32, "the factor 0.5"),
            (Scalar::Float(f64::NAN), DType::I64, "the factor NaN"),
            (Scalar::Float(f64::INFINITY), DType::I64, "the factor inf"),
            (Scalar::Float(9.3e18), DType::I64, "to 9223372036854775807, as int64"),
            (Scalar::Int(300), DType::U8, "from 0 to 255, as uint8"),
            (Scalar::Int(-1), DType::U64, "the factor -1"),
            (Scalar::Uint(1 << 63), DType::I64, "from -9223372036854775808"),
        ];
        for (scalar, dtype, part) in refused {
            let error = ReduceOp::PreMulSum(scalar).for_dtype(dtype).unwrap_err();
            assert!(error.is_invalid_usage() && error.to_string().contains(part), "{error}");
        }
    }

    #[test]
    fn for_dtype_keeps_factors_the_type_has() {
        let kept = |scalar, dtype| {
            let reduction = ReduceOp::PreMulSum(scalar).for_dtype(dtype).unwrap();
            reduction.factor(dtype, 3, true).unwrap()
        };
        assert_eq!(kept(Scalar::Float(-2.0), DType::I8), Scalar::Int(-2));
        assert_eq!(kept(Scalar::Float(2f64.powi(63)), DType::U64), Scalar::Uint(1 << 63));
        assert_eq!(kept(Scalar::Int(7), DType::U32), Scalar::Uint(7));
        assert_eq!(kept(Scalar::Uint(u64::MAX), DType::U64), Scalar::Uint(u64::MAX));
        assert_eq!(kept(Scalar::Float(0.5), DType::F16), Scalar::Float(0.5));
    }
}
