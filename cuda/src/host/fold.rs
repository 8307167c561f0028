//! From the arguments of a call to its kernel.

use super::Store;
use super::formula::{Combine, Max, Min, Prod, Reduced, Scaled, Sum};
use super::kernel::{Assign, Part};
use super::level::Level;
use super::number::Number;
use super::spread::{copy_at, spread};
use crate::{DType, F8E4M3, F8E5M2, Finish, Op, Scalar, Source, Target};
use half::{bf16, f16};
use std::marker::PhantomData;

/// Evaluates `$body` with `$number` as the type of `$dtype`.
macro_rules! with_number {
    ($dtype:expr, $number:ident => $body:expr) => {
        with_number!($dtype, $number, $body, {
            I8: i8;
            U8: u8;
            I32: i32;
            U32: u32;
            I64: i64;
            U64: u64;
            F16: f16;
            BF16: bf16;
            F32: f32;
            F64: f64;
            F8E4M3: F8E4M3;
            F8E5M2: F8E5M2;
        })
    };
    ($dtype:expr, $number:ident, $body:expr, {$($row:ident: $type:ty;)*}) => {
        match $dtype {$(
            DType::$row => {
                type $number = $type;
                $body
            }
        )*}
    };
}

/// A reduction: first ⊕ rest[0] ⊕ …, then `finish`.
pub(super) struct Fold<'a> {
    pub(super) level: Level,
    pub(super) dtype: DType,
    pub(super) op: Op,
    pub(super) finish: Finish,
    pub(super) first: Source<'a>,
    pub(super) rest: &'a [Source<'a>],
}

impl Fold<'_> {
    /// Every target becomes the result.
    pub(super) fn into(self, targets: &mut [(Store, Target<'_>)]) {
        check(self.dtype, targets, self.first);
        for source in self.rest {
            assert_eq!(source.len(), self.first.len(), "a source as long as the first");
        }
        assert_ne!(self.finish, Finish::Divide(0), "no average of no ranks");
        if self.rest.is_empty() && self.finish == Finish::Keep {
            return copy_at(self.level, targets, self.first);
        }
        let kernel = self.kernel();
        spread(self.level, targets, self.dtype.size(), |part| kernel(&self, part));
    }

    fn kernel(&self) -> fn(&Self, Part<'_>) {
        with_number!(self.dtype, T => match self.op {
            Op::Sum | Op::Avg | Op::PreMulSum => Self::run::<T, Sum>,
            Op::Prod => Self::run::<T, Prod>,
            Op::Min => Self::run::<T, Min>,
            Op::Max => Self::run::<T, Max>,
        })
    }

    fn run<T: Number, C: Combine>(&self, part: Part<'_>) {
        let &Self { level, finish, first, rest, .. } = self;
        level.run(Assign { part, formula: Reduced { first, rest, finish, types: PhantomData::<(T, C)> } });
    }
}

/// target = source · scalar
pub(super) fn scale_at(level: Level, dtype: DType, scalar: Scalar, target: Target<'_>, source: Source<'_>) {
    let targets = &mut [(Store::Cached, target)];
    check(dtype, targets, source);
    let [(store, target)] = targets;
    let part = Part { target: target.slice(0..target.len()), at: 0, store: *store };
    with_number!(dtype, T => {
        level.run(Assign { part, formula: Scaled { source, scalar, types: PhantomData::<T> } })
    })
}

/// Panics unless all are equally long and whole numbers of elements.
pub(super) fn check(dtype: DType, targets: &[(Store, Target<'_>)], source: Source<'_>) {
    for (_, target) in targets {
        assert_eq!(source.len(), target.len(), "a source as long as the target");
    }
    let bytes = source.len();
    assert!(bytes.is_multiple_of(dtype.size()), "{bytes} bytes are no whole number of {dtype}");
}
