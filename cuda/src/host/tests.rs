//! Every kernel of every instruction set against the naive one, to the bit.

use super::level::Level;
use super::naive::Naive;
use super::small::{Half, narrow, narrow_bf16, widen};
use super::{Store, copy_at, fold, itself, scale_at};
use crate::{DType, Element, F8E4M3, F8E5M2, Finish, Op, Scalar, Source, Target, as_bytes, as_bytes_mut};
use half::{bf16, f16};
use proptest::prelude::*;

/// Lengths in elements: none, one, and both sides of every register and pack.
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
    };
}

/// Numbers that look random (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Any bits, ordinary numbers and the corners of the type, mixed.
    fn elements<T: Element>(&mut self, count: usize) -> Vec<T> {
        let corners =
            [0.0, -0.0, 1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e-40, f64::MAX, 448.0, 6e-8];
        let element = |_| match self.next() % 4 {
            0 => T::from_f64(corners[self.next() as usize % corners.len()]),
            1 => bits::<T>(self.next()),
            _ => T::from_f64((self.next() as i32) as f64 / f64::from(1 << 28)),
        };
        (0..count).map(element).collect()
    }
}

fn bits<T: Element>(bits: u64) -> T {
    let mut element = [T::default()];
    as_bytes_mut(&mut element).copy_from_slice(&bits.to_le_bytes()[..size_of::<T>()]);
    element[0]
}

fn same<T: Element>(left: T, right: T) -> bool {
    as_bytes(&[left]) == as_bytes(&[right]) || (left.to_f64().is_nan() && right.to_f64().is_nan())
}

/// Memory that begins `skew` bytes behind a multiple of 64 and has guards on both sides.
struct Guarded {
    memory: Vec<u8>,
    start: usize,
    bytes: usize,
}

const GUARD: usize = 64;

impl Guarded {
    fn new(skew: usize, bytes: usize) -> Self {
        let memory = vec![0xa5; bytes + skew + 3 * GUARD];
        let start = memory.as_ptr().align_offset(GUARD) + GUARD + skew;
        Self { memory, start, bytes }
    }

    fn holding<T: Element>(skew: usize, elements: &[T]) -> Self {
        let mut guarded = Self::new(skew, size_of_val(elements));
        guarded.inner().copy_from_slice(as_bytes(elements));
        guarded
    }

    fn inner(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.bytes]
    }

    fn source(&self) -> Source<'_> {
        Source::from(&self.memory[self.start..self.start + self.bytes])
    }

    /// Compares with the beginning of `expected`, and looks at the guards.
    fn expect<T: Element>(mut self, expected: &[T], context: &dyn Fn() -> String) {
        let mut found = vec![T::default(); self.bytes / size_of::<T>()];
        as_bytes_mut(&mut found).copy_from_slice(self.inner());
        for (index, (&found, &expected)) in found.iter().zip(expected).enumerate() {
            assert!(same(found, expected), "{}, [{index}]: {found:?}, not {expected:?}", context());
        }
        self.inner().fill(0xa5);
        assert!(self.memory.iter().all(|&byte| byte == 0xa5), "{}: wrote outside", context());
    }
}

/// How a reduction is called.
#[derive(Clone, Copy, Debug)]
enum Form {
    Into(Store),
    Assign,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    op: Op,
    finish: Finish,
    form: Form,
    skew: usize,
    length: usize,
}

/// Runs `case` at every level on the beginnings of `operands`.
fn check<T: Naive>(case: Case, operands: &[Vec<T>], expected: &[T]) {
    let Case { op, finish, form, skew, length } = case;
    for level in Level::available() {
        let sources: Vec<Guarded> =
            (0..).zip(operands).map(|(rank, own)| Guarded::holding(skew * rank, &own[..length])).collect();
        let sources: Vec<Source<'_>> = sources.iter().map(Guarded::source).collect();
        let mut result = Guarded::holding(skew, &operands[0][..length]);
        let mut target = Target::from(result.inner());
        match form {
            Form::Into(store) => fold(level, store, T::DTYPE, op, finish, target, sources[0], &sources[1..]),
            Form::Assign => {
                let first = itself(&mut target);
                fold(level, Store::Cached, T::DTYPE, op, finish, target, first, &sources[1..]);
            }
        }
        result.expect(&expected[..length], &|| {
            format!("{} {case:?} of {} {level:?}", T::DTYPE, operands.len())
        });
    }
}

fn reference<T: Naive>(op: Op, finish: Finish, operands: &[Vec<T>]) -> Vec<T> {
    let column = |index| operands.iter().map(|own| own[index]).collect::<Vec<_>>();
    (0..operands[0].len()).map(|index| T::reduce(op, finish, &column(index))).collect()
}

fn check_all_reductions<T: Naive>() {
    let mut random = Random(T::DTYPE as u64);
    for count in [1, 2, 3, 4, 5, 9] {
        let operands: Vec<Vec<T>> = (0..count).map(|_| random.elements(LONGEST)).collect();
        for op in Op::ALL {
            for finish in [Finish::Keep, Finish::Divide(3), Finish::Divide(300)] {
                let expected = reference(op, finish, &operands);
                for (index, length) in LENGTHS.into_iter().enumerate() {
                    for form in [Form::Into(Store::Cached), Form::Into(Store::Stream), Form::Assign] {
                        // Not every skew with every length, but each with many.
                        let skew = [0, 1, 8, 61][(index + count + form_code(form)) % 4];
                        check(Case { op, finish, form, skew, length }, &operands, &expected);
                    }
                }
            }
        }
    }
}

fn form_code(form: Form) -> usize {
    match form {
        Form::Into(Store::Cached) => 0,
        Form::Into(Store::Stream) => 1,
        Form::Assign => 3,
    }
}

#[test]
fn every_reduction_is_the_naive_one() {
    for_every_dtype!(check_all_reductions());
}

fn check_all_pairs<T: Naive>() {
    let left: Vec<T> = (0..=0xffff).map(bits).collect();
    for shift in [8, 1] {
        // For one byte: every pair. For two bytes: every code with some other.
        let right = (0..=0xffffu16).map(|code| bits(code.rotate_left(shift).into())).collect();
        let operands = [left.clone(), right];
        for op in [Op::Sum, Op::Prod, Op::Min, Op::Max] {
            let expected = reference(op, Finish::Keep, &operands);
            let case = Case {
                op,
                finish: Finish::Keep,
                form: Form::Into(Store::Cached),
                skew: 0,
                length: left.len(),
            };
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
    let scalars = [Scalar::Float(0.3), Scalar::Float(-2.0), Scalar::Int(-3), Scalar::Int(0x1_0000_0001)];
    for (level, scalar) in
        Level::available().into_iter().flat_map(|level| scalars.map(|scalar| (level, scalar)))
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
            let source = itself(&mut target);
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
    let bytes: Vec<u8> = Random(1).elements(LONGEST);
    for level in Level::available() {
        for store in [Store::Cached, Store::Stream] {
            for (length, skew) in
                LENGTHS.into_iter().flat_map(|length| [0, 1, 17, 63].map(|skew| (length, skew)))
            {
                let mut result = Guarded::new(skew, length);
                let source = Guarded::holding(skew / 2, &bytes[..length]);
                copy_at(level, store, result.inner().into(), source.source());
                result.expect(&bytes, &|| format!("{length} bytes at {skew} {store:?} {level:?}"));
            }
        }
    }
}

#[test]
fn fill_sets_all_and_nothing_else() {
    let mut result = Guarded::new(5, 100);
    crate::fill(result.inner().into(), 7);
    result.expect(&[7u8; 100], &|| "fill".to_owned());
}

#[test]
fn rounding_happens_once_for_all_sources() {
    // One by one, each half of a last place would be lost.
    let ones = [bf16::ONE; 2];
    let small = [bf16::from_f32(1.0 / 256.0); 2];
    let mut sum = [bf16::ZERO; 2];
    let sources = [as_bytes(&ones).into(), as_bytes(&small).into(), as_bytes(&small).into()];
    crate::reduce(DType::BF16, Op::Sum, Finish::Keep, as_bytes_mut(&mut sum).into(), &sources);
    assert_eq!(sum, [bf16::from_f32(1.0 + 2.0 / 256.0); 2]);
}

#[test]
fn wrong_calls_panic() {
    let panics = |dtype, finish, target: usize, sources: &[usize]| {
        let (mut memory, data) = ([0u8; 16], [0u8; 16]);
        let sources: Vec<Source<'_>> = sources.iter().map(|&bytes| Source::from(&data[..bytes])).collect();
        let call = || crate::reduce(dtype, Op::Sum, finish, (&mut memory[..target]).into(), &sources);
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).is_err()
    };
    assert!(!panics(DType::F32, Finish::Keep, 16, &[16, 16]));
    assert!(panics(DType::F32, Finish::Keep, 16, &[]), "no source");
    assert!(panics(DType::F32, Finish::Keep, 16, &[12, 16]), "a short first source");
    assert!(panics(DType::F32, Finish::Keep, 16, &[16, 12]), "a short second source");
    assert!(panics(DType::F32, Finish::Keep, 8, &[16, 16]), "a short target");
    assert!(panics(DType::F64, Finish::Keep, 12, &[12, 12]), "half an element");
    assert!(panics(DType::F32, Finish::Divide(0), 16, &[16, 16]), "no ranks");
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
        (dtype, op) in (prop::sample::select(&DType::ALL[..]), prop::sample::select(&Op::ALL[..])),
        finish in prop_oneof![Just(Finish::Keep), (1u32..).prop_map(Finish::Divide)],
        form in prop::sample::select(vec![
            Form::Into(Store::Cached), Form::Into(Store::Stream), Form::Assign,
        ]),
        (seed, count, length, skew) in (any::<u64>(), 1usize..7, 0usize..3000, 0usize..64),
    ) {
        let case = Case { op, finish, form, skew, length };
        for_every_dtype!(check_random(dtype, seed, count, case));
    }
}
