//! Reductions by an expression that is compiled at run time.

use crate::world::{config, gpu, run};
use unisono::device::{DeviceReduceOp, GpuError};
use unisono::schedule::Collective;
use unisono::{ErrorKind, Sum, bf16};
use unisono_cuda::test_gpu::can_compile;

/// All algorithms must give the result of one order, because the operation is associative.
#[test]
fn user_op_matches_closure() {
    let furthest = |a: i64, b: i64| if a.abs() > b.abs() || (a.abs() == b.abs() && a > b) { a } else { b };
    let element = |rank: usize, index: usize| ((rank * 37 + index * 101) % 211) as i64 - 105;
    let Some(gpu) = gpu().filter(can_compile) else { return };
    let text =
        "(a < 0 ? -a : a) > (b < 0 ? -b : b) || ((a < 0 ? -a : a) == (b < 0 ? -b : b) && a > b) ? a : b";
    // The kernels are loaded before a rank waits for another.
    let reduction = DeviceReduceOp::<i64>::compile(&gpu, text).unwrap();
    run(3, &config(), |comm, stream| {
        let input: Vec<i64> = (0..3000).map(|index| element(comm.rank(), index)).collect();
        let wanted =
            |index| (1..3).fold(element(0, index), |so_far, rank| furthest(so_far, element(rank, index)));
        let wanted: Vec<i64> = (0..3000).map(wanted).collect();
        for (name, count) in
            [("ring", 3000), ("twoshot", 3000), ("oneshot", 3000), ("oneshot", 100), ("tree", 64)]
        {
            comm.set_algorithm(Collective::AllReduce, Some(name)).unwrap();
            let mut values = comm.gpu().upload(&input[..count]).unwrap();
            comm.all_reduce(&stream, &mut values, &reduction).unwrap();
            comm.synchronize(&stream).unwrap();
            assert_eq!(values.to_vec(&stream).unwrap(), wanted[..count], "{name}, {count}");
        }
        let mut share = comm.gpu().alloc::<i64>(1000).unwrap();
        let source = comm.gpu().upload(&input).unwrap();
        comm.reduce_scatter(&stream, &source, &mut share, &reduction).unwrap();
        comm.synchronize(&stream).unwrap();
        assert_eq!(share.to_vec(&stream).unwrap(), wanted[comm.rank() * 1000..][..1000]);
    });
}

#[test]
fn user_op_sees_narrow_floats_as_f32() {
    let Some(gpu) = gpu().filter(can_compile) else { return };
    let reduction = DeviceReduceOp::<bf16>::compile(&gpu, "a * b + 0.5f * (a + b)").unwrap();
    run(2, &config(), |comm, stream| {
        let value = bf16::from_f32(2.0 + comm.rank() as f32);
        let mut values = comm.gpu().upload(&[value; 500]).unwrap();
        comm.all_reduce(&stream, &mut values, &reduction).unwrap();
        comm.synchronize(&stream).unwrap();
        assert_eq!(values.to_vec(&stream).unwrap(), [bf16::from_f32(8.5); 500]);
    });
}

#[test]
fn user_op_compile_error_and_mismatch_are_reported() {
    let Some(gpu) = gpu().filter(can_compile) else { return };
    let refused = DeviceReduceOp::<f32>::compile(&gpu, "a plus b").map(drop).unwrap_err();
    assert!(matches!(&refused, GpuError::CompileFailed { said } if said.contains("error")), "{refused}");
    let operations = ["a + b", "a - b"].map(|text| DeviceReduceOp::<f32>::compile(&gpu, text).unwrap());
    let errors = run(2, &config(), |comm, stream| {
        let reduction = &operations[comm.rank()];
        let mut values = comm.gpu().alloc::<f32>(100).unwrap();
        comm.all_reduce(&stream, &mut values, reduction).unwrap();
        let _ = comm.all_reduce(&stream, &mut values, Sum);
        comm.synchronize(&stream).unwrap_err()
    });
    for error in errors.iter().flatten() {
        assert!(matches!(error.kind(), ErrorKind::Mismatch { .. }), "{error}");
        assert!(error.to_string().contains("a user-defined operation"), "{error}");
    }
}
