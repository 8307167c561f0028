//! Optimizer steps on some elements of a parameter, in host or GPU memory.

use crate::bucket::FlatBuffer;
use crate::data_parallel::optimizer_shards::{BufferSlice, StepContext, host_f32};
use crate::optimizer::{DeviceParamSlice, ParamSlice};
use unisono_cuda::device::{View, ViewMut};
use unisono_nn::allocator::{AllocClass, Allocator};
use unisono_nn::error::{Error, Result};
use unisono_nn::parameter::{Dtype, Parameter};

/// Takes the step on the host, or launches it on a GPU.
pub(super) fn apply_step(
    memory: &Allocator,
    weights: BufferSlice<&mut FlatBuffer>,
    gradient: BufferSlice<&FlatBuffer>,
    moments: BufferSlice<&mut [FlatBuffer]>,
    parameter: &Parameter,
    stride: &StepContext<'_>,
) -> Result<()> {
    let (step, weight_decay) = (&stride.step.of(parameter), parameter.weight_decay);
    if let Some(rate) = parameter.sign_rate {
        return sign_step(memory, weights, gradient, rate);
    }
    let Some(lane) = memory.lane() else {
        let gradient = gradient.buffer.view(memory, gradient.range)?;
        let moments = HostMoments { buffers: moments.buffer, start: moments.range.start };
        return moments.for_each_piece(weights.host_slice(), &gradient, |weights, gradient, moments| {
            stride.optimizer.update(ParamSlice { weights, gradient, moments, weight_decay }, step);
        });
    };
    let each = |numbers| BufferSlice { buffer: numbers, range: moments.range.clone() };
    let moments = moments.buffer.iter_mut().map(each);
    let mut moments: Vec<_> = moments.map(BufferSlice::device_view_mut).collect();
    let span = DeviceParamSlice {
        weights: weights.device_view_mut(),
        gradient: gradient.device_view(),
        moments: &mut moments,
        weight_decay,
    };
    Ok(stride.optimizer.update_on(lane, span, step)?)
}

/// Moves weights by `rate` against the sign of their gradients.
fn sign_step(
    memory: &Allocator,
    weights: BufferSlice<&mut FlatBuffer>,
    gradient: BufferSlice<&FlatBuffer>,
    rate: f32,
) -> Result<()> {
    if memory.lane().is_some() {
        return Err(Error::Unsupported(
            "sign descent in the memory of a GPU: not part of this build".to_owned(),
        ));
    }
    let gradient = gradient.buffer.view(memory, gradient.range)?;
    for (weight, gradient) in weights.host_slice().iter_mut().zip(gradient.iter()) {
        // `signum` of 0.0 is 1.0, but the bias of an expert whose load is the mean must not move.
        *weight -= rate * if *gradient == 0.0 { 0.0 } else { gradient.signum() };
    }
    Ok(())
}

/// Moments in host memory, from `start` on.
struct HostMoments<'a> {
    buffers: &'a mut [FlatBuffer],
    start: usize,
}

impl HostMoments<'_> {
    /// Calls `update` with weights, gradient and moments in 32 bits: all of them, or pieces if
    /// moments have 16 bits. They are rounded to nearest afterwards, ties to even.
    fn for_each_piece(
        self,
        weights: &mut [f32],
        gradient: &[f32],
        mut update: impl for<'a> FnMut(&'a mut [f32], &'a [f32], &'a mut [&'a mut [f32]]),
    ) -> Result<()> {
        let is_wide = self.buffers.iter().all(|moments| moments.dtype() == Dtype::F32);
        if is_wide {
            let range = self.start..self.start + weights.len();
            let slices = self.buffers.iter_mut().map(|moments| &mut host_f32(moments)[range.clone()]);
            update(weights, gradient, &mut slices.collect::<Vec<_>>());
            return Ok(());
        }
        // Copies of all moments would need the memory that 16 bits save.
        let mut copies = vec![[0.0; PIECE]; self.buffers.len()];
        let pieces = weights.chunks_mut(PIECE).zip(gradient.chunks(PIECE));
        for (start, (weights, gradient)) in (self.start..).step_by(PIECE).zip(pieces) {
            let range = start..start + weights.len();
            for (moments, copy) in self.buffers.iter().zip(&mut copies) {
                moments.widen(range.clone(), &mut copy[..range.len()])?;
            }
            let slices = copies.iter_mut().map(|copy| &mut copy[..range.len()]);
            update(weights, gradient, &mut slices.collect::<Vec<_>>());
            for (moments, copy) in self.buffers.iter_mut().zip(&copies) {
                moments.narrow(range.clone(), &copy[..range.len()])?;
            }
        }
        Ok(())
    }
}

/// Number of elements whose 16-bit moments are widened at once.
const PIECE: usize = 1 << 10;

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
