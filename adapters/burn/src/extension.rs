//! The collectives as one operation of a backend, with its gradient.

// The macro names a backend that Burn has marked as deprecated.
#![allow(deprecated)]

use crate::call::{self, Kind};
use crate::error::Error;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind, unary};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, DispatchTensorKind, TensorMetadata, backend_extension, read_sync};
use std::sync::{Arc, Mutex, PoisonError};
use unisono::Communicator;

/// The error of a forward call, for its caller.
pub(crate) type Failure = Arc<Mutex<Option<Error>>>;

/// A collective, the ranks that run it, and the place of its error.
#[derive(Clone)]
pub struct Call {
    pub(crate) comm: Communicator,
    pub(crate) kind: Kind,
    /// The error of the forward call. The backward call has no place for one.
    pub(crate) failure: Option<Failure>,
}

impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Call({:?}, rank {} of {})", self.kind, self.comm.rank(), self.comm.size())
    }
}

/// Backends on which collectives run.
#[backend_extension(
    Flex: cfg(feature = "flex"),
    NdArray: cfg(feature = "ndarray"),
    Autodiff
)]
pub trait CollectiveOps: Backend {
    /// Runs a collective on a tensor. All ranks must make equal calls.
    fn run_collective(input: FloatTensor<Self>, call: Call) -> FloatTensor<Self>;
}

/// Returns true if the tensor is on a backend with collectives.
pub(crate) fn is_supported(kind: &DispatchTensorKind) -> bool {
    match kind {
        DispatchTensorKind::Autodiff(inner) => is_supported(inner),
        #[cfg(feature = "flex")]
        DispatchTensorKind::Flex(_) => true,
        #[cfg(feature = "ndarray")]
        DispatchTensorKind::NdArray(_) => true,
        #[allow(unreachable_patterns)]
        _ => false,
    }
}

#[cfg(feature = "flex")]
impl CollectiveOps for burn::backend::Flex {
    fn run_collective(input: FloatTensor<Self>, call: Call) -> FloatTensor<Self> {
        run_in_host_memory::<Self>(input, &call)
    }
}

#[cfg(feature = "ndarray")]
impl CollectiveOps for burn::backend::NdArray {
    fn run_collective(input: FloatTensor<Self>, call: Call) -> FloatTensor<Self> {
        run_in_host_memory::<Self>(input, &call)
    }
}

/// Runs a collective on a backend whose tensors are in host memory.
///
/// # Panics
/// If a backward call fails: Burn's backward pass returns no error. The text is that of the error.
fn run_in_host_memory<B: Backend>(input: FloatTensor<B>, call: &Call) -> FloatTensor<B> {
    let device = input.device();
    let data = match read_sync(B::float_into_data(input.clone())) {
        Ok(data) => data,
        Err(error) => panic!("the data of a tensor cannot be read: {error:?}"),
    };
    match call::run(&call.comm, call.kind, data) {
        Ok(output) => B::float_from_data(output, &device),
        Err(error) => match &call.failure {
            Some(failure) => {
                // The caller takes the error and drops the tensor.
                *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                input
            }
            None => panic!("{error}"),
        },
    }
}

impl<B: CollectiveOps, C: CheckpointStrategy> CollectiveOps for Autodiff<B, C> {
    fn run_collective(input: FloatTensor<Self>, call: Call) -> FloatTensor<Self> {
        let guard = input.node();
        let back = Call { kind: call.kind.adjoint(), failure: None, comm: call.comm.clone() };
        let output = B::run_collective(input.into_primitive(), call);
        match CollectiveBackward.prepare::<C>([guard]).compute_bound().stateful() {
            OpsKind::Tracked(preparation) => preparation.finish(back, output),
            OpsKind::UnTracked(preparation) => preparation.finish(output),
        }
    }
}

#[derive(Debug)]
struct CollectiveBackward;

impl<B: CollectiveOps> Backward<B, 1> for CollectiveBackward {
    type State = Call;

    fn backward(self, ops: Ops<Call, 1>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        unary::<B, _>(ops.parents, ops.node, grads, |grad| B::run_collective(grad, ops.state));
    }
}
