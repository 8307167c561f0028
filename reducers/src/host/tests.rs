//! Every kernel of every instruction set against the naive one, bit for bit.

mod material;

use super::naive::Naive;
use super::{Store, as_source, reduce_among};
use crate::host::isa::Isa;
use crate::host::multi_store::copy_at;
use crate::host::narrow_float::{Half, narrow, narrow_bf16, widen};
use crate::host::reduction::{Reduction, scale_at};
use crate::{
    Bool, DType, DTypeClass, F8E4M3, F8E5M2, Located, PostOp, ReduceKind, Scalar, Source, Target, as_bytes,
    as_bytes_mut,
};
use Store::{Cached, Stream};
use half::{bf16, f16};
use material::{Guarded, Random, bits, same};
use num_complex::Complex;
use proptest::prelude::*;

/// Lengths in elements: zero, one, and both sides of every register and pack.
const LENGTHS: [usize; 24] =
    [0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 257, 1000, 1500];
const LONGEST: usize = 1500;

/// Calls the generic function `$test` for the type of each element.
macro_rules! for_every_dtype {
    ($test:ident($($argument:expr),*)) => {
        $test::<i8>($($argument),*);
        $test::<u8>($($argument),*);
        $test::<i32>($($argument),*);
        $test::<u32>($($argument),*);
        $test::<i64>($($argument),*);
        $test::<u64>($($argument),*);
        $test::<f16>($($argument),*);
        $test::<bf16>($($argument),*);
        $test::<f32>($($argument),*);
        $test::<f64>($($argument),*);
        $test::<F8E4M3>($($argument),*);
        $test::<F8E5M2>($($argument),*);
        $test::<i16>($($argument),*);
        $test::<u16>($($argument),*);
    };
}

/// Likewise for the types that are no plain numbers.
macro_rules! for_structured_dtypes {
    ($test:ident($($argument:expr),*)) => {
        $test::<Bool>($($argument),*);
        $test::<Complex<f32>>($($argument),*);
        $test::<Complex<f64>>($($argument),*);
        $test::<Located<f32>>($($argument),*);
        $test::<Located<f64>>($($argument),*);
        $test::<Located<i32>>($($argument),*);
        $test::<Located<i64>>($($argument),*);
    };
}

/// The operations that are defined for a type.
fn ops_of(dtype: DType) -> impl Iterator<Item = ReduceKind> {
    ReduceKind::ALL.into_iter().filter(move |op| op.is_defined_for(dtype))
}

/// Returns whether an operation divides where it is finished.
fn divides(op: ReduceKind, dtype: DType) -> bool {
    matches!(op, ReduceKind::Sum | ReduceKind::Avg | ReduceKind::PreMulSum)
        && dtype.class() != DTypeClass::Bool
}

/// Returns operations on results that are defined for the type.
fn finishes(op: ReduceKind, dtype: DType) -> Vec<PostOp> {
    let mut finishes = vec![PostOp::Identity];
    if divides(op, dtype) {
        finishes.extend([PostOp::Divide(3), PostOp::Divide(300)]);
    }
    // A product may be out of range by more than rounding.
    if op == ReduceKind::Avg && matches!(dtype, DType::F16 | DType::F8E4M3 | DType::F8E5M2) {
        finishes.extend([PostOp::Saturate, PostOp::DivideScaled(3), PostOp::DivideScaled(300)]);
    }
    finishes
}

/// Form of a call: the kind of store for each target, and whether the first target is an operand.
#[derive(Clone, Copy, Debug)]
struct CallForm {
    stores: &'static [Store],
    assign: bool,
}

impl CallForm {
    const CACHED: CallForm = CallForm { stores: &[Cached], assign: false };

    const ALL: [CallForm; 10] = [
        CallForm::CACHED,
        CallForm { stores: &[Stream], assign: false },
        CallForm { stores: &[Cached], assign: true },
        CallForm { stores: &[Cached, Stream], assign: false },
        CallForm { stores: &[Stream, Cached], assign: true },
        CallForm { stores: &[Cached, Cached], assign: true },
        CallForm { stores: &[Stream, Stream], assign: false },
        CallForm { stores: &[Stream, Stream, Stream], assign: true },
        CallForm { stores: &[Stream, Cached, Cached, Stream], assign: false },
        CallForm { stores: &[Cached, Stream, Cached, Stream], assign: true },
    ];
}

#[derive(Clone, Copy, Debug)]
struct Case {
    op: ReduceKind,
    finish: PostOp,
    form: CallForm,
    skew: usize,
    length: usize,
}

/// Targets that begin differently far behind a multiple of 64.
fn targets<T: Naive>(stores: &[Store], skew: usize, holding: &[T]) -> Vec<Guarded> {
    (0..stores.len()).map(|index| Guarded::holding((skew + 16 * index * index) % 64, holding)).collect()
}

fn dests<'a>(stores: &[Store], results: &'a mut [Guarded]) -> Vec<(Store, Target<'a>)> {
    stores.iter().copied().zip(results.iter_mut().map(|result| result.inner().into())).collect()
}

/// Runs `case` at every level on the beginnings of `operands`.
fn check<T: Naive>(case: Case, operands: &[Vec<T>], expected: &[T]) {
    let Case { op, finish, form: CallForm { stores, assign }, skew, length } = case;
    for level in Isa::available() {
        let sources: Vec<Guarded> = (0..)
            .zip(operands)
            .map(|(rank, operand)| Guarded::holding(skew * rank, &operand[..length]))
            .collect();
        let sources: Vec<Source<'_>> = sources.iter().map(Guarded::source).collect();
        let mut results = targets(stores, skew, &operands[0][..length]);
        let mut dests = dests(stores, &mut results);
        let first = &if assign { as_source(&mut dests[0].1) } else { sources[0] };
        Reduction { finish, first, rest: &sources[1..], offset: 0 }.store_to_with(
            level,
            T::DTYPE,
            op,
            &mut dests,
        );
        drop(dests);
        for (index, result) in results.into_iter().enumerate() {
            result.expect(&expected[..length], &|| {
                format!("{} {case:?} of {} {level:?}, target {index}", T::DTYPE, operands.len())
            });
        }
    }
}

fn reference<T: Naive>(op: ReduceKind, finish: PostOp, operands: &[Vec<T>]) -> Vec<T> {
    let column = |index| operands.iter().map(|operand| operand[index]).collect::<Vec<_>>();
    (0..operands[0].len()).map(|index| T::reduce(op, finish, &column(index))).collect()
}

fn check_all_reductions<T: Naive>() {
    let mut random = Random(T::DTYPE as u64);
    for count in [1, 2, 3, 4, 5, 9] {
        let operands: Vec<Vec<T>> = (0..count).map(|_| random.elements(LONGEST)).collect();
        for op in ops_of(T::DTYPE) {
            for finish in finishes(op, T::DTYPE) {
                let expected = reference(op, finish, &operands);
                for (index, length) in LENGTHS.into_iter().enumerate() {
                    // Each form and skew is tried with many lengths, but not with all.
                    for turn in [0, 3, 6] {
                        let form = CallForm::ALL[(index + turn) % CallForm::ALL.len()];
                        let skew = [0, 1, 8, 61][(index / 3 + count + turn) % 4];
                        check(Case { op, finish, form, skew, length }, &operands, &expected);
                    }
                }
            }
        }
    }
}

/// Whichever operand the target is.
fn check_among<T: Naive>() {
    let mut random = Random(7 + T::DTYPE as u64);
    for (count, length) in [(2, 3), (2, 129), (3, 64), (5, 1000)] {
        let operands: Vec<Vec<T>> = (0..count).map(|_| random.elements(length)).collect();
        for (op, index) in ops_of(T::DTYPE).flat_map(|op| (0..count).map(move |index| (op, index))) {
            let finish = if divides(op, T::DTYPE) { PostOp::Divide(3) } else { PostOp::Identity };
            let given: Vec<Guarded> = operands.iter().map(|operand| Guarded::holding(8, operand)).collect();
            let mut sources: Vec<Source<'_>> = given.iter().map(Guarded::source).collect();
            sources[index] = Source::from(&[][..]);
            let mut target = Guarded::holding(0, &operands[index]);
            reduce_among(T::DTYPE, op, finish, target.inner().into(), &mut sources, Some(index));
            let expected = reference(op, finish, &operands);
            target.expect(&expected, &|| format!("{} {op:?}, {index} of {count} is the target", T::DTYPE));
        }
    }
}

#[test]
fn the_target_can_be_any_operand() {
    for_every_dtype!(check_among());
    for_structured_dtypes!(check_among());
}

#[test]
fn every_reduction_is_the_naive_one() {
    for_every_dtype!(check_all_reductions());
    for_structured_dtypes!(check_all_reductions());
}

fn check_all_pairs<T: Naive>() {
    let left: Vec<T> = (0..=0xffff).map(bits).collect();
    for shift in [8, 1] {
        // One byte: every pair. Two bytes: every code with some other.
        let right = (0..=0xffffu16).map(|code| bits(code.rotate_left(shift).into())).collect();
        let operands = [left.clone(), right];
        for op in ops_of(T::DTYPE).filter(|op| !matches!(op, ReduceKind::Avg | ReduceKind::PreMulSum)) {
            let expected = reference(op, PostOp::Identity, &operands);
            let case =
                Case { op, finish: PostOp::Identity, form: CallForm::CACHED, skew: 0, length: left.len() };
            check(case, &operands, &expected);
        }
    }
}

#[test]
fn every_pair_of_small_elements_is_combined_as_naively() {
    check_all_pairs::<i8>();
    check_all_pairs::<u8>();
    check_all_pairs::<F8E4M3>();
    check_all_pairs::<F8E5M2>();
    check_all_pairs::<f16>();
    check_all_pairs::<bf16>();
    check_all_pairs::<i16>();
    check_all_pairs::<u16>();
    check_all_pairs::<Bool>();
}

#[test]
fn sixteen_bits_convert_as_in_the_crate_half() {
    for high in 0..=u16::MAX {
        assert!(same(widen::<Half>(high.into()), f16::from_bits(high).to_f32()), "{high:#x}");
        // Both sides of the ties of both types, and the ties.
        for low in [0, 1, 0x0fff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001, 0xffff] {
            let value = f32::from_bits(u32::from(high) << 16 | low);
            let (half, brain) = (narrow::<Half>(value) as u16, narrow_bf16(value) as u16);
            assert!(same(f16::from_bits(half), f16::from_f32(value)), "f16 of {value:e}");
            assert!(same(bf16::from_bits(brain), bf16::from_f32(value)), "bf16 of {value:e}");
        }
    }
}

fn check_scale<T: Naive>() {
    let elements: Vec<T> = Random(7).elements(LONGEST);
    let scalars = [
        Scalar::Float(0.3),
        Scalar::Float(-2.0),
        Scalar::Int(-3),
        Scalar::Int(0x1_0000_0001),
        Scalar::Uint(u64::MAX - 4),
    ];
    for (level, scalar) in
        Isa::available().into_iter().flat_map(|level| scalars.map(|scalar| (level, scalar)))
    {
        let expected: Vec<T> = elements.iter().map(|element| element.scale(scalar)).collect();
        for (index, length) in LENGTHS.into_iter().enumerate() {
            let skew = [0, 3][index % 2];
            let context = || format!("{} · {scalar:?}, {length} {level:?}", T::DTYPE);
            let source = Guarded::holding(1, &elements[..length]);
            let mut result = Guarded::new(skew, length * size_of::<T>());
            scale_at(level, T::DTYPE, scalar, result.inner().into(), source.source());
            result.expect(&expected, &context);

            let mut result = Guarded::holding(skew, &elements[..length]);
            let mut target = Target::from(result.inner());
            let source = as_source(&mut target);
            scale_at(level, T::DTYPE, scalar, target, source);
            result.expect(&expected, &context);
        }
    }
}

#[test]
fn scaling_multiplies_in_the_type_of_accumulation() {
    for_every_dtype!(check_scale());
}

#[test]
fn copies_are_exact_and_stay_inside() {
    let bytes: Vec<u8> = Random(1).elements(10_000);
    for (level, form) in
        Isa::available().into_iter().flat_map(|level| CallForm::ALL.map(|form| (level, form)))
    {
        for (length, skew) in LENGTHS
            .into_iter()
            .chain([4096, 8191, 10_000])
            .flat_map(|length| [0, 1, 17, 63].map(|skew| (length, skew)))
        {
            let mut results = targets(form.stores, skew, &vec![0u8; length]);
            let source = Guarded::holding(skew / 2, &bytes[..length]);
            copy_at(level, &mut dests(form.stores, &mut results), source.source());
            for result in results {
                result.expect(&bytes, &|| format!("{length} bytes at {skew} {form:?} {level:?}"));
            }
        }
    }
}

/// Multiplies every element by factors of every size, so that results lie anywhere between two
/// codes. Each must be rounded once, overflow, underflow, or be a tie.
fn check_rounding<T: Naive>() {
    let elements: Vec<T> = (0..=0xffff).map(bits).collect();
    let mut random = Random(11);
    let of_every_size = (0..300).map(|step| (1.0 + random.fraction()) * 2f64.powi(step - 150));
    let halfway = [0.5, 1.5, 1.0625, 1.03125, 1.015625, 1.00390625, -0.75];
    let corners = [0.0, -0.0, f64::INFINITY, f64::from_bits(u64::MAX)];
    for factor in of_every_size.chain(halfway).chain(corners) {
        let scalar = Scalar::Float(factor);
        let expected: Vec<T> = elements.iter().map(|element| element.scale(scalar)).collect();
        for level in Isa::available() {
            let source = as_bytes(&elements).into();
            let mut result = Guarded::new(0, size_of_val(&elements[..]));
            scale_at(level, T::DTYPE, scalar, result.inner().into(), source);
            result.expect(&expected, &|| format!("{} · {factor:e} {level:?}", T::DTYPE));
        }
    }
}

#[test]
fn small_floats_are_rounded_once_whatever_their_size() {
    check_rounding::<F8E4M3>();
    check_rounding::<F8E5M2>();
    check_rounding::<f16>();
    check_rounding::<bf16>();
}

#[test]
fn fill_sets_all_and_nothing_else() {
    let mut result = Guarded::new(5, 100);
    crate::fill(result.inner().into(), 7);
    result.expect(&[7u8; 100], &|| "fill".to_owned());
}

#[test]
fn reduce_many_sources_rounds_once() {
    // One by one, each half of a last place would be lost.
    let ones = [bf16::ONE; 2];
    let small = [bf16::from_f32(1.0 / 256.0); 2];
    let mut sum = [bf16::ZERO; 2];
    let sources = [as_bytes(&ones).into(), as_bytes(&small).into(), as_bytes(&small).into()];
    crate::reduce(DType::BF16, ReduceKind::Sum, PostOp::Identity, as_bytes_mut(&mut sum).into(), &sources);
    assert_eq!(sum, [bf16::from_f32(1.0 + 2.0 / 256.0); 2]);
}

#[test]
fn reduce_bad_arguments_panics() {
    let panics = |dtype, finish, target: usize, sources: &[usize]| {
        let (mut memory, data) = ([0u8; 16], [0u8; 16]);
        let sources: Vec<Source<'_>> = sources.iter().map(|&bytes| Source::from(&data[..bytes])).collect();
        let call = || crate::reduce(dtype, ReduceKind::Sum, finish, (&mut memory[..target]).into(), &sources);
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).is_err()
    };
    assert!(!panics(DType::F32, PostOp::Identity, 16, &[16, 16]));
    assert!(panics(DType::F32, PostOp::Identity, 16, &[]), "no source");
    assert!(panics(DType::F32, PostOp::Identity, 16, &[12, 16]), "a short first source");
    assert!(panics(DType::F32, PostOp::Identity, 16, &[16, 12]), "a short second source");
    assert!(panics(DType::F32, PostOp::Identity, 8, &[16, 16]), "a short target");
    let mut targets = [[0u8; 16].to_vec(), [0u8; 8].to_vec()];
    let mut targets: Vec<_> = targets.iter_mut().map(|bytes| (Cached, bytes.as_mut_slice().into())).collect();
    let data = [0u8; 16];
    let call = || crate::copy_into(&mut targets, data[..].into());
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).is_err(), "a short second target");
    assert!(panics(DType::F64, PostOp::Identity, 12, &[12, 12]), "half an element");
    assert!(panics(DType::F32, PostOp::Divide(0), 16, &[16, 16]), "no ranks");
    assert!(panics(DType::F32, PostOp::Saturate, 16, &[16, 16]), "a type that is not narrow");
}

fn check_random<T: Naive>(wanted: DType, seed: u64, count: usize, case: Case) {
    if T::DTYPE == wanted {
        let mut random = Random(seed);
        let operands: Vec<Vec<T>> = (0..count).map(|_| random.elements(case.length)).collect();
        check(case, &operands, &reference(case.op, case.finish, &operands));
    }
}

proptest! {
    #[test]
    fn any_reduction_is_the_naive_one(
        (dtype, op) in (prop::sample::select(&DType::ON_GPU[..]), prop::sample::select(&ReduceKind::ON_GPU[..])),
        finish in prop_oneof![Just(PostOp::Identity), (1u32..).prop_map(PostOp::Divide)],
        form in prop::sample::select(&CallForm::ALL[..]),
        (seed, count, length, skew) in (any::<u64>(), 1usize..7, 0usize..6000, 0usize..64),
    ) {
        let finish = if divides(op, dtype) { finish } else { PostOp::Identity };
        let case = Case { op, finish, form, skew, length };
        for_every_dtype!(check_random(dtype, seed, count, case));
    }
}
