//! How the operations on GPUs combine elements: as those of the CPU do, or by an expression of one's own.

use crate::reduction::Reduction;
use std::marker::PhantomData;
use unisono_cuda::Element;
use unisono_cuda::device::{DeviceReduction, OwnKernels};

/// A [`Reduction`], or a [`DeviceReduction`] for elements of `T`.
#[derive(Clone, Copy)]
pub struct Combine<'a, T> {
    pub(super) reduction: Reduction,
    /// In the place of the sum.
    pub(super) own: Option<&'a OwnKernels>,
    elements: PhantomData<fn(T) -> T>,
}

impl<T> From<Reduction> for Combine<'_, T> {
    fn from(reduction: Reduction) -> Self {
        Self { reduction, own: None, elements: PhantomData }
    }
}

impl<'a, T: Element> From<&'a DeviceReduction<T>> for Combine<'a, T> {
    fn from(own: &'a DeviceReduction<T>) -> Self {
        Self { reduction: Reduction::Sum, own: Some(own.kernels()), elements: PhantomData }
    }
}
