//! From the arguments of a call to its kernel.

use super::Store;
use super::formula::{Both, Combine, Max, Min, Prod, Reduced, Scaled, Sum};
use super::kernel::{Assign, Outlet};
use super::level::{Instructions, Kernel, Level};
use super::number::Number;
use super::spread::{copy_at, fence, spread};
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
    pub(super) finish: Finish,
    /// By reference: copying what was just written takes longer than a short reduction.
    pub(super) first: &'a Source<'a>,
    pub(super) rest: &'a [Source<'a>],
    /// Byte of the sources that the target begins with.
    pub(super) at: usize,
}

impl Fold<'_> {
    /// Every target becomes the result.
    pub(super) fn into(self, dtype: DType, op: Op, targets: &mut [Outlet<'_>]) {
        self.into_at(Level::best(), dtype, op, targets);
    }

    /// Likewise, with the instructions of `level`.
    pub(super) fn into_at(self, level: Level, dtype: DType, op: Op, targets: &mut [Outlet<'_>]) {
        if let ([outlet], [second], Finish::Keep) = (&mut *targets, self.rest, self.finish) {
            // As short as possible, for the sake of a few bytes.
            check(dtype, outlet.1.len(), self.first.len());
            check(dtype, outlet.1.len(), second.len());
            kernel_of_two(dtype, op)(level, &self, outlet);
            return fence(targets);
        }
        self.into_any(level, dtype, op, targets);
    }

    #[inline(never)] // It would only lengthen the way of a few bytes.
    fn into_any(mut self, level: Level, dtype: DType, op: Op, targets: &mut [Outlet<'_>]) {
        for (_, target) in targets.iter() {
            for source in self.rest.iter().chain([self.first]) {
                check(dtype, target.len(), source.len());
            }
        }
        assert_ne!(self.finish, Finish::Divide(0), "no average of no ranks");
        if self.rest.is_empty() && self.finish == Finish::Keep {
            return copy_at(level, targets, *self.first);
        }
        let kernel = if self.finish == Finish::Keep && self.rest.len() == 1 {
            kernel_of_two(dtype, op)
        } else {
            kernel(dtype, op)
        };
        spread(level, targets, dtype.size(), |outlet, at| {
            self.at = at;
            kernel(level, &self, outlet);
        });
    }
}

type KernelOf = fn(Level, &Fold<'_>, &mut Outlet<'_>);

fn kernel(dtype: DType, op: Op) -> KernelOf {
    with_number!(dtype, T => match op {
        Op::Sum | Op::Avg | Op::PreMulSum => all::<T, Sum>,
        Op::Prod => all::<T, Prod>,
        Op::Min => all::<T, Min>,
        Op::Max => all::<T, Max>,
    })
}

/// The kernel for two sources and nothing afterwards. Sums have one of their own: they are frequent,
/// and may be of a few bytes only.
fn kernel_of_two(dtype: DType, op: Op) -> KernelOf {
    with_number!(dtype, T => match op {
        Op::Sum | Op::Avg | Op::PreMulSum => two::<T, Sum>,
        Op::Prod => all::<T, Prod>,
        Op::Min => all::<T, Min>,
        Op::Max => all::<T, Max>,
    })
}

fn all<T: Number, C: Combine>(level: Level, fold: &Fold<'_>, outlet: &mut Outlet<'_>) {
    level.run(All { fold, outlet, types: PhantomData::<(T, C)> });
}

fn two<T: Number, C: Combine>(level: Level, fold: &Fold<'_>, outlet: &mut Outlet<'_>) {
    level.run(Two { fold, outlet, types: PhantomData::<(T, C)> });
}

/// A [`Fold`] as its kernel gets it: in two registers.
struct All<'a, 'b, T, C> {
    fold: &'a Fold<'a>,
    outlet: &'a mut Outlet<'b>,
    types: PhantomData<(T, C)>,
}

impl<T: Number, C: Combine> Kernel for All<'_, '_, T, C> {
    #[inline(always)]
    fn run<I: Instructions>(self, cpu: I) {
        let Self { fold: &Fold { finish, first, rest, at, .. }, outlet, types } = self;
        Assign { outlet, at, formula: Reduced { first: *first, rest, finish, types } }.run(cpu);
    }
}

/// A [`Fold`] of two sources that nothing is done to afterwards.
struct Two<'a, 'b, T, C> {
    fold: &'a Fold<'a>,
    outlet: &'a mut Outlet<'b>,
    types: PhantomData<(T, C)>,
}

impl<T: Number, C: Combine> Kernel for Two<'_, '_, T, C> {
    #[inline(always)]
    fn run<I: Instructions>(self, cpu: I) {
        let Self { fold: &Fold { first, rest, at, .. }, outlet, types } = self;
        if let [second] = rest {
            Assign { outlet, at, formula: Both { first: *first, second: *second, types } }.run(cpu);
        }
    }
}

/// target = source · scalar
pub(super) fn scale_at(level: Level, dtype: DType, scalar: Scalar, target: Target<'_>, source: Source<'_>) {
    let outlet = &mut (Store::Cached, target);
    check(dtype, outlet.1.len(), source.len());
    with_number!(dtype, T => {
        level.run(Assign { outlet, at: 0, formula: Scaled { source, scalar, types: PhantomData::<T> } })
    })
}

/// Panics unless both are equally long and whole numbers of elements.
#[inline]
pub(super) fn check(dtype: DType, target: usize, source: usize) {
    // Sizes are powers of two: a division would take longer than a short reduction.
    if source != target || source & (dtype.size() - 1) != 0 {
        refuse(dtype, target, source);
    }
}

#[cold]
fn refuse(dtype: DType, target: usize, source: usize) -> ! {
    assert_eq!(source, target, "bytes of a source and of its target");
    panic!("{source} bytes are no whole number of {dtype}");
}
