//! The obviously right reductions, one element at a time, that every kernel is compared with.

use crate::{Element, F8E4M3, F8E5M2, PostOp, ReduceKind, Scalar};
use half::{bf16, f16};

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
                };
                match finish {
                    PostOp::Identity => result,
                    PostOp::Divide(ranks) => (i128::from(result) / i128::from(ranks)) as $type,
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

integers! { i8 u8 i32 u32 i64 u64 }

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
                };
                match finish {
                    PostOp::Identity => $narrow(result.unwrap()),
                    PostOp::Divide(ranks) => $narrow(result.unwrap() / ranks as $wide),
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
