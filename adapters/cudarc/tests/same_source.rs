//! One source compiles against `cudarc::nccl` and against this crate, and runs against the latter.

use cudarc::driver::{CudaContext, CudaSlice, CudaStream};
use std::sync::Arc;
use unisono_cuda::test_gpu::test_gpu;

/// Writes the same program for a module with the interface of `cudarc::nccl`.
macro_rules! program {
    ($name:ident, $nccl:path) => {
        mod $name {
            use super::*;
            use nccl::{Comm, Id, NcclType, ReduceOp, group_end, group_start, result};
            use $nccl as nccl;

            type Failure = Box<dyn std::error::Error>;

            fn boxed(error: result::NcclError) -> Failure {
                format!("{error:?}").into()
            }

            /// Calls everything on one rank of a group of one.
            pub(super) fn call_everything(stream: &Arc<CudaStream>) -> Result<Vec<f32>, Failure> {
                let id = Id::new().map_err(boxed)?;
                let id = Id::uninit(*id.internal());
                let comm = Comm::from_rank(stream.clone(), 0, 1, id).map_err(boxed)?;
                assert_eq!((comm.rank(), comm.world_size(), comm.ordinal()), (0, 1, 0));
                assert_eq!(comm.context().ordinal(), comm.stream().context().ordinal());
                let input = stream.clone_htod(&[1.0f32, 2.0])?;
                let mut output = stream.alloc_zeros::<f32>(2)?;
                collectives(&comm, &input, &mut output).map_err(boxed)?;
                group_start().map_err(boxed)?;
                comm.all_reduce(&input, &mut output, &ReduceOp::Avg).map_err(boxed)?;
                group_end().map_err(boxed)?;
                exchange(&comm, &input, &mut output).map_err(boxed)?;
                Ok(stream.clone_dtoh(&output)?)
            }

            fn collectives<T: NcclType + cudarc::driver::DeviceRepr>(
                comm: &Comm,
                input: &CudaSlice<T>,
                output: &mut CudaSlice<T>,
            ) -> Result<(), result::NcclError> {
                comm.all_reduce(input, output, &ReduceOp::Sum)?;
                comm.all_reduce_in_place(output, &ReduceOp::Max)?;
                comm.reduce(input, Some(output), &ReduceOp::Prod, 0)?;
                comm.reduce_in_place(output, &ReduceOp::Min, 0)?;
                comm.broadcast(Some(input), output, 0)?;
                comm.broadcast_in_place(output, 0)?;
                comm.all_gather(input, output)?;
                comm.reduce_scatter(input, output, &ReduceOp::Sum)?;
                Ok(())
            }

            /// Sends to itself, in a group.
            fn exchange(
                comm: &Comm,
                input: &CudaSlice<f32>,
                output: &mut CudaSlice<f32>,
            ) -> Result<(), result::NcclError> {
                let (sent, received) = (input.slice(..), output.slice_mut(..));
                let mut group = comm.group();
                group.send(sent, 0)?;
                group.recv(received, 0)?;
                Ok(())
            }

            /// Makes all ranks of a process.
            #[allow(dead_code)]
            pub(super) fn all_devices(streams: Vec<Arc<CudaStream>>) -> Result<Vec<Comm>, Failure> {
                Comm::from_devices(streams).map_err(boxed)
            }
        }
    };
}

program!(ours, unisono_cudarc);
#[allow(dead_code)]
mod compiled_only {
    use super::*;
    program!(theirs, cudarc::nccl);
}

#[test]
fn source_for_cudarc_runs_with_another_use() {
    if test_gpu(1).is_none() {
        return;
    }
    let stream = CudaContext::new(0).expect("a device").new_stream().expect("a stream");
    assert_eq!(ours::call_everything(&stream).unwrap(), [1.0, 2.0]);
}
