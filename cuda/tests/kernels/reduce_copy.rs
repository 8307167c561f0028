//! The kernels, compiled for the CPU and run by the emulator, against the host's naive reductions.

use crate::emulator::Device;
use crate::material::{Guarded, Random};
use crate::naive::Naive;
use unisono_cuda::device::ReduceCopy;
use unisono_reducers::{DType, F8E4M3, F8E5M2, PostOp, ReduceKind, Scalar, bf16, f16};

/// Lengths in elements: none, one, both sides of packs, and more than all threads take at once.
const LENGTHS: [usize; 8] = [0, 1, 15, 16, 17, 63, 700, 2500];
const LONGEST: usize = 2500;
const SOURCES: usize = 4;
const RANKS: u32 = 3;

/// A reduction, and the offset of each buffer from a multiple of 64.
struct Case {
    op: ReduceKind,
    length: usize,
    sources: usize,
    targets: usize,
    /// Offset of the first buffer, and the increment for each following one.
    skew: (usize, usize),
}

impl Case {
    fn run<T: Naive>(&self, device: &Device, operands: &[Vec<T>], scalars: &[Scalar], expected: &[T]) {
        let skew = |index: usize| (self.skew.0 + index * self.skew.1) % 16;
        let holding = |index: usize| Guarded::holding(skew(index), &operands[index][..self.length]);
        let sources: Vec<Guarded> = (0..self.sources).map(holding).collect();
        let bytes = self.length * size_of::<T>();
        let mut targets: Vec<Guarded> =
            (0..self.targets).map(|index| Guarded::new(skew(self.sources + index), bytes)).collect();
        let source_addresses: Vec<*const u8> =
            sources.iter().map(|source| source.source().as_ptr()).collect();
        let target_addresses: Vec<*mut u8> =
            targets.iter_mut().map(|target| target.inner().as_mut_ptr()).collect();
        let mut arguments = ReduceCopy::new(&target_addresses, &source_addresses, self.length);
        arguments.divisor = RANKS;
        for (factor, &scalar) in arguments.factors.iter_mut().zip(scalars) {
            *factor = ReduceCopy::factor(T::DTYPE, scalar);
        }
        let kernel = ReduceCopy::kernel(T::DTYPE, self.op);
        device.run(&kernel, &arguments, 2, 32).unwrap();
        for target in targets {
            let context = || format!("{kernel} of {}, {} at {:?}", self.sources, self.length, self.skew);
            target.expect(expected, &context);
        }
    }
}

fn reference<T: Naive>(op: ReduceKind, operands: &[Vec<T>], scalars: &[Scalar]) -> Vec<T> {
    let finish = if op == ReduceKind::Avg { PostOp::Divide(RANKS) } else { PostOp::Identity };
    let operand = |index: usize, (values, &scalar): (&Vec<T>, &Scalar)| {
        if op == ReduceKind::PreMulSum { values[index].scale(scalar) } else { values[index] }
    };
    let column = |index| operands.iter().zip(scalars).map(|pair| operand(index, pair)).collect::<Vec<T>>();
    (0..LONGEST).map(|index| T::reduce(op, finish, &column(index))).collect()
}

fn check_all<T: Naive>(device: &Device) {
    let mut random = Random(T::DTYPE as u64);
    let operands: Vec<Vec<T>> = (0..SOURCES).map(|_| random.elements(LONGEST)).collect();
    let scalars = [Scalar::Float(2.5), Scalar::Int(-3), Scalar::Float(1.0 / 3.0), Scalar::Int(1)];
    for op in ReduceKind::ON_GPU {
        let references: Vec<Vec<T>> =
            (1..=SOURCES).map(|sources| reference(op, &operands[..sources], &scalars)).collect();
        for (sources, first) in (0..16).map(|first| (1 + first % SOURCES, first)) {
            let expected = &references[sources - 1];
            for (turn, length) in LENGTHS.into_iter().enumerate() {
                // Buffers that begin equally far off, and otherwise.
                let skew = (first, [0, 8, 0, 3][(first / SOURCES + turn) % 4]);
                let case = Case { op, length, sources, targets: 1 + (first + turn) % 3, skew };
                case.run(device, &operands[..sources], &scalars, expected);
            }
        }
    }
}

#[test]
fn every_type_and_operation_is_the_naive_one() {
    let Some(device) = Device::new("reduce_copy.so", &["kernels/reduce_copy.cu"]) else { return };
    expect_tables(&device);
    check_all::<i8>(&device);
    check_all::<u8>(&device);
    check_all::<i32>(&device);
    check_all::<u32>(&device);
    check_all::<i64>(&device);
    check_all::<u64>(&device);
    check_all::<f16>(&device);
    check_all::<bf16>(&device);
    check_all::<f32>(&device);
    check_all::<f64>(&device);
    check_all::<F8E4M3>(&device);
    check_all::<F8E5M2>(&device);
    average_in_place(&device);
}

/// Averages a sum of gradients in place.
fn average_in_place(device: &Device) {
    let mut expected: Vec<f32> = Random(7).elements(LONGEST);
    let mut values = Guarded::holding(4, &expected);
    let address = values.inner().as_mut_ptr();
    let mut arguments = ReduceCopy::new(&[address], &[address], LONGEST);
    arguments.divisor = 7;
    device.run(&ReduceCopy::kernel(DType::F32, ReduceKind::Avg), &arguments, 2, 32).unwrap();
    unisono_reducers::average(&mut expected, 7);
    values.expect(&expected, &|| "in place".to_owned());
}

/// A kernel for each type and operation of the host's tables, and no other.
fn expect_tables(device: &Device) {
    let mut found = device.kernels();
    let mut wanted: Vec<String> = DType::ON_GPU.into_iter().flat_map(kernels).collect();
    found.sort();
    wanted.sort();
    assert_eq!(found, wanted);
}

fn kernels(dtype: DType) -> [String; ReduceKind::ON_GPU.len()] {
    ReduceKind::ON_GPU.map(|op| ReduceCopy::kernel(dtype, op))
}

#[test]
fn every_type_has_a_module_with_its_operations() {
    for dtype in DType::ON_GPU {
        let name = format!("reduce_copy_{dtype}");
        let module = unisono_kernels::module(&name).expect("a module of this type");
        let found: Vec<&str> = unisono_kernels::kernel_names(module.text).collect();
        assert_eq!(found, kernels(dtype), "{name}");
    }
}
