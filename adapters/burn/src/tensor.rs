//! Collectives on tensors, through which gradients flow.

use crate::call::Kind;
use crate::error::{Error, Result};
use crate::extension::{Call, CollectiveOps, Failure, is_supported};
use burn::backend::Dispatch;
use burn::tensor::Tensor;
use burn::tensor::distributed::ReduceOperation;
use std::sync::{Arc, PoisonError};
use unisono::{Communicator, ReduceOp};

/// Reduces a tensor over all ranks. Every rank gets the result.
///
/// The tensor has the same shape on all ranks. The backward pass reduces the gradients of all ranks
/// by the same operation, as `burn::tensor::distributed::all_reduce` does on GPUs. Every rank must
/// then run the backward pass.
///
/// # Errors
/// [`Error::Collective`] if the ranks do not agree or a rank fails, and
/// [`Error::UnsupportedDType`] for elements that have no reduction,
/// and [`Error::UnsupportedBackend`] on another backend than Flex and NdArray.
///
/// # Panics
/// In the backward pass, if the collective fails there.
///
/// ```
/// use burn::tensor::{Device, Tensor, distributed::ReduceOperation};
/// use unisono::Communicator;
/// use unisono_burn::all_reduce;
///
/// let ranks = Communicator::local(2)?;
/// std::thread::scope(|scope| {
///     for comm in ranks {
///         scope.spawn(move || {
///             let device = Device::flex().autodiff();
///             let input = Tensor::<1>::from_floats([1.0, 2.0], &device).require_grad();
///             let sum = all_reduce(input.clone(), ReduceOperation::Sum, &comm).unwrap();
///             assert_eq!(sum.to_data().try_to_vec::<f32>().unwrap(), [2.0, 4.0]);
///             let gradient = input.grad(&sum.backward()).unwrap();
///             assert_eq!(gradient.into_data().try_to_vec::<f32>().unwrap(), [2.0, 2.0]);
///         });
///     }
/// });
/// # Ok::<(), unisono::Error>(())
/// ```
pub fn all_reduce<const D: usize>(
    input: Tensor<D>,
    op: ReduceOperation,
    comm: &Communicator,
) -> Result<Tensor<D>> {
    run(input, Kind::AllReduce(reduce_op(op)), comm)
}

/// Concatenates the tensors of all ranks, by rank, along the first dimension.
///
/// The tensor has the same shape on all ranks. The gradient of the input is the sum, over all
/// ranks, of the gradients of its rows.
///
/// # Errors
/// As [`all_reduce`], and [`Error::UnevenRows`] for a tensor without dimensions.
///
/// # Panics
/// As [`all_reduce`].
pub fn all_gather<const D: usize>(input: Tensor<D>, comm: &Communicator) -> Result<Tensor<D>> {
    run(input, Kind::AllGather, comm)
}

/// Reduces a tensor over all ranks and returns this rank's part of the first dimension.
///
/// # Errors
/// As [`all_reduce`], and [`Error::UnevenRows`] if the number of ranks does not divide the first
/// dimension.
///
/// # Panics
/// As [`all_reduce`].
pub fn reduce_scatter<const D: usize>(
    input: Tensor<D>,
    op: ReduceOperation,
    comm: &Communicator,
) -> Result<Tensor<D>> {
    let sum = run(input, Kind::ReduceScatter, comm)?;
    Ok(match op {
        ReduceOperation::Sum => sum,
        ReduceOperation::Mean => sum.div_scalar(comm.size() as f64),
    })
}

/// Returns the root's tensor on every rank. The other ranks give a tensor of the same shape.
///
/// The gradient of the root's tensor is the sum of the gradients of all ranks; the other tensors
/// get zeros.
///
/// # Errors
/// As [`all_reduce`].
///
/// # Panics
/// As [`all_reduce`].
pub fn broadcast<const D: usize>(input: Tensor<D>, root: usize, comm: &Communicator) -> Result<Tensor<D>> {
    run(input, Kind::Broadcast(root), comm)
}

/// Sends part i of the first dimension to rank i. Returns the parts from all ranks, by rank.
///
/// # Errors
/// As [`reduce_scatter`].
///
/// # Panics
/// As [`all_reduce`].
pub fn all_to_all<const D: usize>(input: Tensor<D>, comm: &Communicator) -> Result<Tensor<D>> {
    run(input, Kind::AllToAll, comm)
}

fn run<const D: usize>(input: Tensor<D>, kind: Kind, comm: &Communicator) -> Result<Tensor<D>> {
    let device = input.device();
    let input = input.into_dispatch();
    if !is_supported(&input.kind) {
        let (operation, rank) = (kind.name(), comm.rank());
        return Err(Error::UnsupportedBackend { operation, rank, device: format!("{device:?}") });
    }
    let failure = Failure::default();
    let call = Call { comm: comm.clone(), kind, failure: Some(Arc::clone(&failure)) };
    let output = <Dispatch as CollectiveOps>::run_collective(input, call);
    let error = failure.lock().unwrap_or_else(PoisonError::into_inner).take();
    error.map_or_else(|| Ok(Tensor::from_dispatch(output)), Err)
}

/// Returns the same operation for the core.
pub(crate) fn reduce_op(op: ReduceOperation) -> ReduceOp {
    match op {
        ReduceOperation::Sum => ReduceOp::Sum,
        ReduceOperation::Mean => ReduceOp::Avg,
    }
}
