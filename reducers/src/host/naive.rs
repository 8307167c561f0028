//! The obviously right reductions, one element at a time, that every kernel is compared with.

use crate::{Bool, Complex, DType, Element, F8E4M3, F8E5M2, Located, PostOp, ReduceKind, Scalar, bf16, f16};

/// An element type with its reference arithmetic.
pub(super) trait Naive: Element {
    /// operands[0] ⊕ operands[1] ⊕ …, then `finish`.
    fn reduce(op: ReduceKind, finish: PostOp, operands: &[Self]) -> Self;

    /// self · scalar.
    fn scale(self, scalar: Scalar) -> Self;
}

macro_rules! integers {
    ($($type:ty)*) => {$(
        impl Naive for $type {
            fn reduce(op: ReduceKind, finish: PostOp, operands: &[Self]) -> Self {
                let wide = operands.iter().map(|&operand| i128::from(operand));
                let result = match op {
                    ReduceKind::Sum | ReduceKind::Avg | ReduceKind::PreMulSum => wide.sum::<i128>() as $type,
                    ReduceKind::Prod => wide.reduce(i128::wrapping_mul).unwrap() as $type,
                    ReduceKind::Min => wide.min().unwrap() as $type,
                    ReduceKind::Max => wide.max().unwrap() as $type,
                    ReduceKind::BitAnd => operands.iter().copied().reduce(|left, right| left & right).unwrap(),
                    ReduceKind::BitOr => operands.iter().copied().reduce(|left, right| left | right).unwrap(),
                    ReduceKind::BitXor => operands.iter().copied().reduce(|left, right| left ^ right).unwrap(),
                    _ => panic!("{op} of integers"),
                };
                match finish {
                    PostOp::Identity => result,
                    PostOp::Divide(ranks) => (i128::from(result) / i128::from(ranks)) as $type,
                    PostOp::Saturate | PostOp::DivideScaled(_) => panic!("integers are not scaled"),
                }
            }

            fn scale(self, scalar: Scalar) -> Self {
                let factor = match scalar {
                    Scalar::Int(factor) => i128::from(factor),
                    Scalar::Uint(factor) => i128::from(factor),
                    Scalar::Float(factor) => i128::from(factor as i64),
                };
                i128::from(self).wrapping_mul(factor) as $type
            }
        }
    )*};
}

integers! { i8 u8 i16 u16 i32 u32 i64 u64 }

macro_rules! floats {
    ($($type:ty, $wide:ty, $widen:expr, $narrow:expr;)*) => {$(
        impl Naive for $type {
            fn reduce(op: ReduceKind, finish: PostOp, operands: &[Self]) -> Self {
                let wide = operands.iter().map(|&operand| -> $wide { $widen(operand) });
                let some_nan = wide.clone().find(|value| value.is_nan());
                let result = match op {
                    ReduceKind::Sum | ReduceKind::Avg | ReduceKind::PreMulSum => wide.reduce(|left, right| left + right),
                    ReduceKind::Prod => wide.reduce(|left, right| left * right),
                    // The total order puts -0 below +0.
                    ReduceKind::Min => some_nan.or(wide.min_by(<$wide>::total_cmp)),
                    ReduceKind::Max => some_nan.or(wide.max_by(<$wide>::total_cmp)),
                    _ => panic!("{op} of floats"),
                };
                match finish {
                    PostOp::Identity => $narrow(result.unwrap()),
                    PostOp::Divide(ranks) => $narrow(result.unwrap() / ranks as $wide),
                    PostOp::Saturate => $narrow(saturated(Self::DTYPE, result.unwrap().into()) as $wide),
                    PostOp::DivideScaled(ranks) => {
                        let scaled = result.unwrap() * ranks.next_power_of_two() as $wide / ranks as $wide;
                        $narrow(saturated(Self::DTYPE, scaled.into()) as $wide)
                    }
                }
            }

            fn scale(self, scalar: Scalar) -> Self {
                let factor = match scalar {
                    Scalar::Float(factor) => factor as $wide,
                    Scalar::Int(factor) => factor as $wide,
                    Scalar::Uint(factor) => factor as $wide,
                };
                $narrow($widen(self) * factor)
            }
        }
    )*};
}

floats! {
    f32, f32, f32::from, f32::from;
    f64, f64, f64::from, f64::from;
    f16, f32, f16::to_f32, f16::from_f32;
    bf16, f32, bf16::to_f32, bf16::from_f32;
    F8E4M3, f32, F8E4M3::to_f32, F8E4M3::from_f32;
    F8E5M2, f32, F8E5M2::to_f32, F8E5M2::from_f32;
}

/// The finite value of the type that is next to a finite `value`.
fn saturated(dtype: DType, value: f64) -> f64 {
    let max = match dtype {
        DType::F16 => f16::MAX.to_f64(),
        DType::F8E4M3 => 448.0,
        DType::F8E5M2 => 57344.0,
        _ => panic!("{dtype} is not scaled"),
    };
    if value.is_finite() { value.clamp(-max, max) } else { value }
}

impl Naive for Bool {
    fn reduce(op: ReduceKind, _: PostOp, operands: &[Self]) -> Self {
        let mut truths = operands.iter().map(|operand| operand.get());
        let result = match op {
            ReduceKind::BitAnd | ReduceKind::Min => truths.all(|truth| truth),
            ReduceKind::BitOr | ReduceKind::Max => truths.any(|truth| truth),
            ReduceKind::BitXor => truths.filter(|&truth| truth).count() % 2 == 1,
            _ => panic!("{op} of truth values"),
        };
        result.into()
    }

    fn scale(self, _: Scalar) -> Self {
        panic!("truth values have no factor")
    }
}

macro_rules! complex {
    ($($part:ty)*) => {$(
        impl Naive for Complex<$part> {
            fn reduce(op: ReduceKind, finish: PostOp, operands: &[Self]) -> Self {
                let result = match op {
                    ReduceKind::Sum | ReduceKind::Avg => operands.iter().copied().reduce(|left, right| left + right),
                    ReduceKind::Prod => operands.iter().copied().reduce(|left, right| left * right),
                    _ => panic!("{op} of complex numbers"),
                };
                match finish {
                    PostOp::Identity => result.unwrap(),
                    PostOp::Divide(ranks) => result.unwrap() / ranks as $part,
                    PostOp::Saturate | PostOp::DivideScaled(_) => panic!("complex numbers are not scaled"),
                }
            }

            fn scale(self, _: Scalar) -> Self {
                panic!("complex numbers have no factor")
            }
        }
    )*};
}

complex! { f32 f64 }

macro_rules! located {
    ($($value:ty)*) => {$(
        impl Naive for Located<$value> {
            fn reduce(op: ReduceKind, _: PostOp, operands: &[Self]) -> Self {
                let is_nan = |located: &&Self| located.to_f64().is_nan();
                let values = operands.iter().map(|located| located.value).filter(|value| value == value);
                let best = match op {
                    ReduceKind::MinLoc => values.reduce(|left, right| if right < left { right } else { left }),
                    ReduceKind::MaxLoc => values.reduce(|left, right| if right > left { right } else { left }),
                    _ => panic!("{op} of values with an index"),
                };
                let first = |located: &&Self| located.index;
                let nan = operands.iter().filter(is_nan).min_by_key(first);
                let equal = operands.iter().filter(|located| Some(located.value) == best).min_by_key(first);
                *nan.or(equal).unwrap()
            }

            fn scale(self, _: Scalar) -> Self {
                panic!("values with an index have no factor")
            }
        }
    )*};
}

located! { f32 f64 i32 i64 }
