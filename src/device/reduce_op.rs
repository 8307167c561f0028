//! Reduction operators on GPUs, which are those of the CPU engine or an expression of the user.

use crate::reduce_op::ReduceOp;
use std::marker::PhantomData;
use unisono_cuda::device::{DeviceReduceOp, UserOpKernels};
use unisono_reducers::Element;

/// A [`ReduceOp`], or a [`DeviceReduceOp`] for elements of `T`.
#[derive(Clone, Copy)]
pub struct AnyReduceOp<'a, T> {
    pub(super) op: ReduceOp,
    /// Kernels of a user-defined operation, used instead of the sum.
    pub(super) user_op: Option<&'a UserOpKernels>,
    elements: PhantomData<fn(T) -> T>,
}

impl<T> From<ReduceOp> for AnyReduceOp<'_, T> {
    fn from(reduction: ReduceOp) -> Self {
        Self { op: reduction, user_op: None, elements: PhantomData }
    }
}

impl<'a, T: Element> From<&'a DeviceReduceOp<T>> for AnyReduceOp<'a, T> {
    fn from(reduction: &'a DeviceReduceOp<T>) -> Self {
        Self { op: ReduceOp::Sum, user_op: Some(reduction.kernels()), elements: PhantomData }
    }
}
