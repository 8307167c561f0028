//! Optimizer steps on some elements of a parameter, in host or GPU memory.

use crate::allocator::{AllocClass, Allocator};
use crate::error::Result;
use crate::flat::{Dtype, FlatBuffer};
use crate::optim::{DeviceParamSlice, ParamSlice};
use crate::parallel::optimizer_shards::{BufferSlice, StepContext, host_f32};
use unisono_cuda::device::{View, ViewMut};

/// Takes the step on the host, or launches it on a GPU.
pub(super) fn apply_step(
    memory: &Allocator,
    weights: BufferSlice<&mut FlatBuffer>,
    gradient: BufferSlice<&FlatBuffer>,
    moments: BufferSlice<&mut [FlatBuffer]>,
    decays: bool,
    stride: &StepContext<'_>,
) -> Result<()> {
    let each = |numbers| BufferSlice { buffer: numbers, range: moments.range.clone() };
    let moments = moments.buffer.iter_mut().map(each);
    let Some(lane) = memory.lane() else {
        let gradient = gradient.buffer.view(memory, gradient.range)?;
        let mut moments: Vec<_> = moments.map(BufferSlice::host_slice).collect();
        let span = ParamSlice {
            weights: weights.host_slice(),
            gradient: &gradient,
            moments: &mut moments,
            weight_decay: decays,
        };
        stride.optimizer.update(span, stride.step);
        return Ok(());
    };
    let mut moments: Vec<_> = moments.map(BufferSlice::device_view_mut).collect();
    let span = DeviceParamSlice {
        weights: weights.device_view_mut(),
        gradient: gradient.device_view(),
        moments: &mut moments,
        weight_decay: decays,
    };
    Ok(stride.optimizer.update_on(lane, span, stride.step)?)
}

/// Copies 16-bit numbers in GPU memory to 32 bits. The host widens numbers only when it needs them.
pub(super) fn to_f32(numbers: &FlatBuffer, memory: &Allocator) -> Result<Option<FlatBuffer>> {
    let is_narrow = memory.lane().is_some() && numbers.dtype() == Dtype::Bf16;
    Ok(is_narrow.then(|| numbers.to_dtype(memory, AllocClass::Buffers, Dtype::F32)).transpose()?)
}

impl<'a> BufferSlice<&'a FlatBuffer> {
    /// Returns the view of 32-bit floats in GPU memory.
    pub(super) fn device_view(self) -> View<'a, f32> {
        self.buffer.as_device().and_then(|there| there.view(self.range)).expect("of 32 bits on a GPU")
    }
}

impl<'a> BufferSlice<&'a mut FlatBuffer> {
    /// Returns the mutable slice of 32-bit floats in host memory.
    pub(super) fn host_slice(self) -> &'a mut [f32] {
        &mut host_f32(self.buffer)[self.range]
    }

    /// Returns the mutable view of 32-bit floats in GPU memory.
    pub(super) fn device_view_mut(self) -> ViewMut<'a, f32> {
        let there = self.buffer.as_device_mut();
        there.and_then(|there| there.view_mut(self.range)).expect("of 32 bits on a GPU")
    }
}
