//! Every call of `cudarc::nccl`, on the software device.

use cudarc::driver::{CudaContext, CudaStream};
use std::sync::Arc;
use unisono::{Communicator, Config, DeviceConfig};
use unisono_cuda::emulator;
use unisono_cuda::test_gpu::test_gpu;
use unisono_cudarc::result::NcclResult;
use unisono_cudarc::{Comm, Id, NcclError, NcclStatus, ReduceOp, group_end, group_start};

/// Returns a context of the software device, or `None` with a message if there is no C++ compiler.
/// The variable `TEST_ON_GPU` selects the first GPU of the machine.
fn context() -> Option<Arc<CudaContext>> {
    let gpu = test_gpu(1)?;
    if gpu.is_emulated() {
        // cudarc frees memory in the order of a stream. The emulator has no such calls, and those
        // that cudarc makes instead would wait for kernels that wait for the rank that frees.
        assert!(emulator::set_rule("free-waits", false).expect("the emulator"));
    }
    Some(CudaContext::new(0).expect("a device"))
}

/// Runs `body` on every rank, all of them on one device.
fn on_ranks(ranks: usize, body: impl Fn(&Comm, &Arc<CudaStream>) + Sync) {
    let Some(context) = context() else { return };
    let gpu = DeviceConfig::default().with_channels(2).with_fifo_depth(3).with_fifo_slot_bytes(4096);
    let config = Config::default().with_gpu(gpu.with_window_bytes(64 << 10));
    let comms = Communicator::builder().config(&config).local(ranks).expect("memory for the links");
    std::thread::scope(|scope| {
        for comm in comms {
            let (context, body) = (&context, &body);
            scope.spawn(move || {
                let stream = context.new_stream().expect("a stream");
                let comm = Comm::from_communicator(Arc::clone(&stream), &comm).expect("a rank");
                body(&comm, &stream);
            });
        }
    });
}

#[test]
fn comm_tells_its_rank_stream_and_device() {
    on_ranks(2, |comm, stream| {
        assert!(comm.rank() < comm.world_size() && comm.world_size() == 2);
        assert_eq!((comm.ordinal(), comm.context().ordinal()), (0, 0));
        assert!(Arc::ptr_eq(&comm.stream(), stream));
        assert_eq!(comm.device_communicator().rank(), comm.communicator().rank());
    });
}

#[test]
fn all_reduce_has_every_operation() {
    on_ranks(3, |comm, stream| {
        let values = vec![comm.rank() as f32 + 1.0; 3000];
        let input = stream.clone_htod(&values).unwrap();
        let mut output = stream.alloc_zeros::<f32>(3000).unwrap();
        let cases = [
            (ReduceOp::Sum, 6.0),
            (ReduceOp::Prod, 6.0),
            (ReduceOp::Max, 3.0),
            (ReduceOp::Min, 1.0),
            (ReduceOp::Avg, 2.0),
        ];
        for (op, expected) in cases {
            assert_eq!(comm.all_reduce(&input, &mut output, &op).unwrap(), NcclStatus::Success);
            assert_eq!(stream.clone_dtoh(&output).unwrap(), [expected; 3000], "{op:?}");
            let mut buffer = stream.clone_htod(&values).unwrap();
            comm.all_reduce_in_place(&mut buffer, &op).unwrap();
            assert_eq!(stream.clone_dtoh(&buffer).unwrap(), [expected; 3000], "{op:?}");
        }
        comm.check().unwrap();
    });
}

#[test]
fn all_reduce_takes_views() {
    on_ranks(2, |comm, stream| {
        let input = stream.clone_htod(&[1i64, 2, 3, 4]).unwrap();
        let mut output = stream.alloc_zeros::<i64>(4).unwrap();
        comm.all_reduce(&input.slice(1..3), &mut output.slice_mut(2..4), &ReduceOp::Sum).unwrap();
        assert_eq!(stream.clone_dtoh(&output).unwrap(), [0, 0, 4, 6]);
    });
}

#[test]
fn broadcast_reads_only_the_root() {
    on_ranks(3, |comm, stream| {
        let input = stream.clone_htod(&[comm.rank() as u32; 50]).unwrap();
        let mut output = stream.alloc_zeros::<u32>(50).unwrap();
        comm.broadcast(Some(&input), &mut output, 1).unwrap();
        assert_eq!(stream.clone_dtoh(&output).unwrap(), [1; 50]);
        comm.broadcast((comm.rank() == 2).then_some(&input), &mut output, 2).unwrap();
        assert_eq!(stream.clone_dtoh(&output).unwrap(), [2; 50]);
        let mut buffer = input;
        comm.broadcast_in_place(&mut buffer, 0).unwrap();
        assert_eq!(stream.clone_dtoh(&buffer).unwrap(), [0; 50]);
    });
}

#[test]
fn reduce_writes_only_the_root() {
    on_ranks(3, |comm, stream| {
        let input = stream.clone_htod(&[comm.rank() as i32 + 1; 70]).unwrap();
        let mut output = stream.clone_htod(&[-1i32; 70]).unwrap();
        comm.reduce(&input, Some(&mut output), &ReduceOp::Sum, 2).unwrap();
        let expected = if comm.rank() == 2 { 6 } else { -1 };
        assert_eq!(stream.clone_dtoh(&output).unwrap(), [expected; 70]);
        let mut buffer = input;
        comm.reduce_in_place(&mut buffer, &ReduceOp::Max, 0).unwrap();
        let expected = if comm.rank() == 0 { 3 } else { comm.rank() as i32 + 1 };
        assert_eq!(stream.clone_dtoh(&buffer).unwrap(), [expected; 70]);
    });
}

#[test]
fn all_gather_and_reduce_scatter_share_out() {
    on_ranks(2, |comm, stream| {
        let input = stream.clone_htod(&[comm.rank() as u8 + 1; 9]).unwrap();
        let mut gathered = stream.alloc_zeros::<u8>(18).unwrap();
        comm.all_gather(&input, &mut gathered).unwrap();
        assert_eq!(stream.clone_dtoh(&gathered).unwrap(), [[1; 9], [2; 9]].concat());
        let mut share = stream.alloc_zeros::<u8>(9).unwrap();
        comm.reduce_scatter(&gathered, &mut share, &ReduceOp::Sum).unwrap();
        assert_eq!(stream.clone_dtoh(&share).unwrap(), [2 * (comm.rank() as u8 + 1); 9]);
    });
}

#[test]
fn send_and_recv_move_data() {
    on_ranks(2, |comm, stream| {
        let mut buffer = stream.clone_htod(&[comm.rank() as f64 + 5.0; 40]).unwrap();
        match comm.rank() {
            0 => comm.send(&buffer, 1).unwrap(),
            _ => assert_eq!(comm.recv(&mut buffer, 0).unwrap(), NcclStatus::Success),
        }
        assert_eq!(stream.clone_dtoh(&buffer).unwrap(), [5.0; 40]);
    });
}

#[test]
fn groups_exchange_without_deadlock() {
    on_ranks(3, |comm, stream| {
        let (rank, ranks) = (comm.rank() as i32, comm.world_size() as i32);
        let (next, previous) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
        let input = stream.clone_htod(&vec![rank; 20_000]).unwrap();
        let mut output = stream.alloc_zeros::<i32>(20_000).unwrap();
        let mut sum = stream.clone_htod(&[rank]).unwrap();
        {
            let (input, output) = (input.slice(..), output.slice_mut(..));
            let sum = sum.slice_mut(..);
            let mut group = comm.group();
            group.send(input, next).unwrap();
            group.recv(output, previous).unwrap();
            group.all_reduce_in_place(sum, &ReduceOp::Sum).unwrap();
            assert_eq!(group.comm().rank(), comm.rank());
        }
        assert_eq!(stream.clone_dtoh(&output).unwrap(), vec![previous; 20_000]);
        assert_eq!(stream.clone_dtoh(&sum).unwrap(), [3]);
    });
}

#[test]
fn group_end_returns_errors() {
    on_ranks(2, |comm, stream| {
        let input = stream.clone_htod(&[1i32]).unwrap();
        let view = input.slice(..);
        let mut group = comm.group();
        group.send(view, 7).unwrap();
        let error = group.end().unwrap_err();
        assert_eq!(error.result(), NcclResult::InvalidUsage);
        assert!(error.to_string().contains('7'), "{error}");
        comm.check().expect("refused arguments leave the communicator usable");
    });
}

#[test]
fn refused_arguments_name_both_values() {
    on_ranks(2, |comm, stream| {
        let input = stream.clone_htod(&[1f32; 4]).unwrap();
        let mut output = stream.alloc_zeros::<f32>(9).unwrap();
        let error = comm.all_gather(&input, &mut output).unwrap_err().to_string();
        assert!(error.contains('8') && error.contains('9'), "{error}");
        let error = comm.broadcast_in_place(&mut output, -1).unwrap_err();
        assert!(matches!(error, NcclError::NegativeRank { peer: -1, .. }), "{error}");
        assert_eq!(error.result(), NcclResult::InvalidArgument);
        if comm.rank() == 0 {
            let missing = None::<&mut cudarc::driver::CudaSlice<f32>>;
            let error = comm.reduce(&input, missing, &ReduceOp::Sum, 0).unwrap_err();
            assert_eq!(error.result(), NcclResult::InvalidUsage, "{error}");
        }
    });
}

#[test]
fn group_start_takes_collectives_and_refuses_sends() {
    on_ranks(2, |comm, stream| {
        let mut buffer = stream.clone_htod(&[1i32; 5]).unwrap();
        group_start().unwrap();
        comm.all_reduce_in_place(&mut buffer, &ReduceOp::Sum).unwrap();
        let error = comm.send(&buffer, 1 - comm.rank() as i32).unwrap_err();
        assert!(error.to_string().contains("Comm::group"), "{error}");
        group_end().unwrap();
        assert!(matches!(group_end().unwrap_err(), NcclError::Unsupported { .. }));
        assert_eq!(stream.clone_dtoh(&buffer).unwrap(), [2; 5]);
    });
}

#[test]
fn from_devices_needs_one_thread_only() {
    let Some(context) = context() else { return };
    let streams: Vec<_> = (0..2).map(|_| context.new_stream().unwrap()).collect();
    let comms = Comm::from_devices(streams).unwrap();
    let inputs: Vec<_> =
        comms.iter().map(|comm| comm.stream().clone_htod(&[comm.rank() as f32 + 1.0; 6]).unwrap()).collect();
    let mut outputs: Vec<_> = comms.iter().map(|comm| comm.stream().alloc_zeros::<f32>(6).unwrap()).collect();
    group_start().unwrap();
    for ((comm, input), output) in comms.iter().zip(&inputs).zip(&mut outputs) {
        comm.all_reduce(input, output, &ReduceOp::Sum).unwrap();
    }
    group_end().unwrap();
    for (comm, output) in comms.iter().zip(&outputs) {
        assert_eq!(comm.stream().clone_dtoh(output).unwrap(), [3.0; 6]);
    }
}

#[test]
fn from_rank_meets_by_the_bytes_of_an_id() {
    let Some(context) = context() else { return };
    let id = Id::new().unwrap();
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let context = &context;
            scope.spawn(move || {
                let stream = context.new_stream().unwrap();
                let comm = Comm::from_rank(stream.clone(), rank, 2, Id::uninit(*id.internal())).unwrap();
                let mut buffer = stream.clone_htod(&[1u64; 3]).unwrap();
                comm.all_reduce_in_place(&mut buffer, &ReduceOp::Sum).unwrap();
                assert_eq!(stream.clone_dtoh(&buffer).unwrap(), [2; 3]);
            });
        }
    });
}

#[test]
fn bytes_that_are_no_id_are_refused() {
    let Some(context) = context() else { return };
    let error = Comm::from_rank(context.new_stream().unwrap(), 0, 1, Id::uninit([7; 128])).unwrap_err();
    assert!(matches!(error, NcclError::InvalidId { .. }), "{error}");
    let id = Id::new().unwrap();
    assert!(!format!("{id:?}").contains('/'), "the secret is not shown");
}
