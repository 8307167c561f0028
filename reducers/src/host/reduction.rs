//! Selection of the kernel for the arguments of a call.

use crate::host::Store;
use crate::host::element_op::{Binary, Combine, Max, Min, Nary, Prod, Scaled, Sum};
use crate::host::isa::{Instructions, Isa, SimdKernel};
use crate::host::kernel::{Assign, Dest};
use crate::host::multi_store::{copy_at, fence, store_all, via_staging};
use crate::host::simd_element::SimdElement;
use crate::host::structured_lanes::Bits;
use crate::{Bool, DType, DTypeClass, F8E4M3, F8E5M2, Located, PostOp, ReduceKind, Scalar, Source, Target};
use half::{bf16, f16};
use num_complex::Complex;
use std::marker::PhantomData;

/// Evaluates `$body` with `$number` as the type of `$dtype`, or `$other` if that is no plain
/// number.
macro_rules! with_element {
    ($dtype:expr, $number:ident => $body:expr, $other:expr) => {
        with_element!($dtype, $number, $body, $other, {
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
            I16: i16;
            U16: u16;
        })
    };
    ($dtype:expr, $number:ident, $body:expr, $other:expr, {$($row:ident: $type:ty;)*}) => {
        match $dtype {$(
            DType::$row => {
                type $number = $type;
                $body
            }
        )*
            _ => $other,
        }
    };
}

/// A reduction: first ⊕ rest[0] ⊕ …, then `finish`.
pub(super) struct Reduction<'a> {
    pub(super) finish: PostOp,
    /// A reference, because copying data that was just written takes longer than a short reduction.
    pub(super) first: &'a Source<'a>,
    pub(super) rest: &'a [Source<'a>],
    /// Byte of the sources that the target begins with.
    pub(super) offset: usize,
}

impl Reduction<'_> {
    /// Stores the result to every target.
    pub(super) fn store_to(self, dtype: DType, op: ReduceKind, targets: &mut [Dest<'_>]) {
        self.store_to_with(Isa::best(), dtype, op, targets);
    }

    /// Likewise, with the instructions of `level`.
    pub(super) fn store_to_with(self, level: Isa, dtype: DType, op: ReduceKind, targets: &mut [Dest<'_>]) {
        if let ([dest], [second], PostOp::Identity) = (&mut *targets, self.rest, self.finish) {
            // A short check, because operations may be on a few bytes only.
            check(dtype, dest.1.len(), self.first.len());
            check(dtype, dest.1.len(), second.len());
            kernel(&BINARY_KERNELS, dtype, op)(level, &self, dest);
            return fence(targets);
        }
        self.store_general(level, dtype, op, targets);
    }

    #[inline(never)] // It would only lengthen the way of a few bytes.
    fn store_general(mut self, level: Isa, dtype: DType, op: ReduceKind, targets: &mut [Dest<'_>]) {
        for (_, target) in targets.iter() {
            for source in self.rest.iter().chain([self.first]) {
                check(dtype, target.len(), source.len());
            }
        }
        let divides_by_zero = matches!(self.finish, PostOp::Divide(0) | PostOp::DivideScaled(0));
        assert!(!divides_by_zero, "no average of no ranks");
        assert!(is_defined(self.finish, dtype, op), "{:?} is not defined for {op} of {dtype}", self.finish);
        if self.rest.is_empty() && self.finish == PostOp::Identity {
            return copy_at(level, targets, *self.first);
        }
        let is_binary = self.finish == PostOp::Identity && self.rest.len() == 1;
        let kernel = kernel(if is_binary { &BINARY_KERNELS } else { &NARY_KERNELS }, dtype, op);
        store_all(level, targets, dtype.size(), |dest, offset| {
            self.offset = offset;
            kernel(level, &self, dest);
        });
    }
}

type KernelFn = fn(Isa, &Reduction<'_>, &mut Dest<'_>);

/// The kernels by the codes of element type and operation. A reduction of a few bytes would feel a
/// search.
type KernelTable = [[Option<KernelFn>; ReduceKind::ALL.len()]; DType::ALL.len()];

static NARY_KERNELS: KernelTable = kernel_table(false);
/// The kernels for two sources without a post-operation.
static BINARY_KERNELS: KernelTable = kernel_table(true);

const fn kernel_table(is_binary: bool) -> KernelTable {
    let mut table: KernelTable = [[None; ReduceKind::ALL.len()]; DType::ALL.len()];
    let mut cell = 0;
    while cell < ReduceKind::ALL.len() * DType::ALL.len() {
        let (row, column) = (cell / ReduceKind::ALL.len(), cell % ReduceKind::ALL.len());
        table[row][column] = kernel_of(DType::ALL[row], ReduceKind::ALL[column], is_binary);
        cell += 1;
    }
    table
}

/// Returns the kernel of an operation from its table.
#[inline]
fn kernel(table: &KernelTable, dtype: DType, op: ReduceKind) -> KernelFn {
    match table[dtype as usize].get(op as usize) {
        Some(&Some(kernel)) => kernel,
        _ => undefined(dtype, op),
    }
}

#[cold]
fn undefined(dtype: DType, op: ReduceKind) -> ! {
    panic!("{op} is not defined for {dtype}")
}

/// Sums of two sources have a kernel of their own: they are frequent, and may be of a few bytes.
const fn kernel_of(dtype: DType, op: ReduceKind, is_binary: bool) -> Option<KernelFn> {
    with_element!(dtype, T => match op {
        ReduceKind::Sum | ReduceKind::Avg | ReduceKind::PreMulSum if is_binary => Some(run_binary::<T, Sum>),
        ReduceKind::Sum | ReduceKind::Avg | ReduceKind::PreMulSum => Some(run_nary::<T, Sum>),
        ReduceKind::Prod => Some(run_nary::<T, Prod>),
        ReduceKind::Min => Some(run_nary::<T, Min>),
        ReduceKind::Max => Some(run_nary::<T, Max>),
        _ => structured_kernel(dtype, op),
    }, structured_kernel(dtype, op))
}

/// Returns the kernel of an operation on bits, or on elements that are no plain numbers.
const fn structured_kernel(dtype: DType, op: ReduceKind) -> Option<KernelFn> {
    use DTypeClass::{Bool as Truth, Integer};
    let kernel: KernelFn = match (op, dtype.class(), dtype) {
        (ReduceKind::BitAnd, Integer, _) => run_nary::<Bits, Min>,
        (ReduceKind::BitOr, Integer, _) => run_nary::<Bits, Max>,
        (ReduceKind::BitXor, Integer, _) => run_nary::<Bits, Sum>,
        (ReduceKind::BitAnd | ReduceKind::Min, Truth, _) => run_nary::<Bool, Min>,
        (ReduceKind::BitOr | ReduceKind::Max, Truth, _) => run_nary::<Bool, Max>,
        (ReduceKind::BitXor, Truth, _) => run_nary::<Bool, Sum>,
        (ReduceKind::Sum | ReduceKind::Avg, _, DType::C64) => run_nary::<Complex<f32>, Sum>,
        (ReduceKind::Sum | ReduceKind::Avg, _, DType::C128) => run_nary::<Complex<f64>, Sum>,
        (ReduceKind::Prod, _, DType::C64) => run_nary::<Complex<f32>, Prod>,
        (ReduceKind::Prod, _, DType::C128) => run_nary::<Complex<f64>, Prod>,
        (ReduceKind::MinLoc, _, DType::F32I32) => run_nary::<Located<f32>, Min>,
        (ReduceKind::MinLoc, _, DType::F64I64) => run_nary::<Located<f64>, Min>,
        (ReduceKind::MinLoc, _, DType::I32I32) => run_nary::<Located<i32>, Min>,
        (ReduceKind::MinLoc, _, DType::I64I64) => run_nary::<Located<i64>, Min>,
        (ReduceKind::MaxLoc, _, DType::F32I32) => run_nary::<Located<f32>, Max>,
        (ReduceKind::MaxLoc, _, DType::F64I64) => run_nary::<Located<f64>, Max>,
        (ReduceKind::MaxLoc, _, DType::I32I32) => run_nary::<Located<i32>, Max>,
        (ReduceKind::MaxLoc, _, DType::I64I64) => run_nary::<Located<i64>, Max>,
        _ => return None,
    };
    Some(kernel)
}

/// Returns true if results of an operation can be finished like this.
fn is_defined(finish: PostOp, dtype: DType, op: ReduceKind) -> bool {
    let is_sum = matches!(op, ReduceKind::Sum | ReduceKind::Avg | ReduceKind::PreMulSum);
    match finish {
        PostOp::Identity => true,
        PostOp::Divide(_) => is_sum,
        PostOp::Saturate | PostOp::DivideScaled(_) => {
            is_sum && dtype.class() == DTypeClass::Float && dtype.size() < 4
        }
    }
}

fn run_nary<T: SimdElement, C: Combine>(level: Isa, reduction: &Reduction<'_>, dest: &mut Dest<'_>) {
    let types = PhantomData::<(T, C)>;
    if !C::IS_SUM && dest.0 == Store::Stream {
        return via_staging(level, std::slice::from_mut(dest), size_of::<T>(), |dest, offset| {
            let reduction = &Reduction { offset: reduction.offset + offset, ..*reduction };
            level.run(NaryKernel { reduction, dest, types });
        });
    }
    level.run(NaryKernel { reduction, dest, types });
}

fn run_binary<T: SimdElement, C: Combine>(level: Isa, reduction: &Reduction<'_>, dest: &mut Dest<'_>) {
    level.run(BinaryKernel { reduction, dest, types: PhantomData::<(T, C)> });
}

/// A [`Reduction`] as an argument of its kernel, in two registers.
struct NaryKernel<'a, 'b, T, C> {
    reduction: &'a Reduction<'a>,
    dest: &'a mut Dest<'b>,
    types: PhantomData<(T, C)>,
}

impl<T: SimdElement, C: Combine> SimdKernel for NaryKernel<'_, '_, T, C> {
    #[inline(always)]
    fn run<I: Instructions>(self, cpu: I) {
        let Self { reduction: &Reduction { finish, first, rest, offset: at, .. }, dest, types } = self;
        Assign { dest, offset: at, op: Nary { first: *first, rest, finish, types } }.run(cpu);
    }
}

/// A [`Reduction`] of two sources that nothing is done to afterwards.
struct BinaryKernel<'a, 'b, T, C> {
    reduction: &'a Reduction<'a>,
    dest: &'a mut Dest<'b>,
    types: PhantomData<(T, C)>,
}

impl<T: SimdElement, C: Combine> SimdKernel for BinaryKernel<'_, '_, T, C> {
    #[inline(always)]
    fn run<I: Instructions>(self, cpu: I) {
        let Self { reduction: &Reduction { first, rest, offset: at, .. }, dest, types } = self;
        if let [second] = rest {
            Assign { dest, offset: at, op: Binary { first: *first, second: *second, types } }.run(cpu);
        }
    }
}

/// target = source · scalar
pub(super) fn scale_at(level: Isa, dtype: DType, scalar: Scalar, target: Target<'_>, source: Source<'_>) {
    let dest = &mut (Store::Cached, target);
    check(dtype, dest.1.len(), source.len());
    with_element!(dtype, T => {
        level.run(Assign { dest, offset: 0, op: Scaled { source, scalar, types: PhantomData::<T> } })
    }, panic!("{dtype} has no factor"))
}

/// Panics unless both have the same length, and whole numbers of elements.
#[inline]
pub(super) fn check(dtype: DType, target: usize, source: usize) {
    // Sizes are powers of two: a division would take longer than a short reduction.
    if source != target || source & (dtype.size() - 1) != 0 {
        length_panic(dtype, target, source);
    }
}

#[cold]
fn length_panic(dtype: DType, target: usize, source: usize) -> ! {
    assert_eq!(source, target, "bytes of a source and of its target");
    panic!("{source} bytes are no whole number of {dtype}");
}
