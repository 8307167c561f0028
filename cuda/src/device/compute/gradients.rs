//! Operations on gradients between the backward pass and the optimizer step.

use super::{Compute, as_device_mut_ptr, as_device_ptr, check_len};
use crate::device::model::{Clip, Convert, SquareSums};
use crate::device::{Buffer, GpuError, View, ViewMut};
use std::ptr::null;
use unisono_reducers::bf16;

impl Compute {
    /// The sum of the squares of all of them, which stays in memory of the GPU.
    ///
    /// # Errors
    /// Of the driver.
    pub fn square_sums(&self, parts: &[View<'_, f32>]) -> Result<Buffer<f64>, GpuError> {
        let blocks = |part: &View<'_, f32>| self.linear(part.len()).0.clamp(1, self.blocks_max.into());
        let (block_count, stream) = (parts.iter().map(blocks).sum::<u64>(), self.stream());
        let (mut partial, mut total) =
            (stream.alloc_uninit::<f64>(block_count.max(1) as usize)?, stream.alloc_uninit::<f64>(1)?);
        let arguments = SquareSums {
            values: null(),
            count: 0,
            partial: as_device_mut_ptr(&partial.view_mut(..)),
            total: as_device_mut_ptr(&total.view_mut(..)),
            partials: block_count,
        };
        let (partials, total_memory, mut first) = (partial.view(..), total.view(..).memory, 0);
        for part in parts {
            let (values, partial) = (as_device_ptr(part), as_device_ptr(&partials.view(first..)).cast_mut());
            let arguments = SquareSums { values, count: part.len() as u64, partial, ..arguments };
            let (memories, shape) = ([part.memory, partials.memory], (blocks(part), self.threads));
            // SAFETY: pointers are to the part, and to room for a number of each block of it.
            unsafe { self.launch("squares", shape, &memories, &arguments)? };
            first += blocks(part) as usize;
        }
        // SAFETY: pointers are to buffers of these lengths.
        unsafe { self.launch("total", (1, self.threads), &[partials.memory, total_memory], &arguments)? };
        Ok(total)
    }

    /// Multiplies the values by `scale`, and then by the factor that clips the whole gradient to
    /// the norm `longest`. `squares` is the sum of squares of the whole gradient. 0 for `longest`
    /// clips nothing.
    ///
    /// # Errors
    /// `squares` is not one number, or the driver fails.
    pub fn scale_and_clip(
        &self,
        values: ViewMut<'_, f32>,
        squares: View<'_, f64>,
        scale: f32,
        longest: f64,
    ) -> Result<(), GpuError> {
        check_len(squares.len(), 1)?;
        let (count, view) = (values.len(), values.as_view());
        let (values, squared) = (as_device_mut_ptr(&values), as_device_ptr(&squares));
        let arguments = Clip { values, count: count as u64, squares: squared, longest, scale, unused: 0 };
        // SAFETY: pointers are to views of these lengths.
        unsafe {
            self.launch("scale_and_clip", self.linear(count), &[view.memory, squares.memory], &arguments)
        }
    }

    /// Converts to f32, exactly.
    ///
    /// # Errors
    /// Lengths differ, or the driver fails.
    pub fn widen(&self, to: ViewMut<'_, f32>, from: View<'_, bf16>) -> Result<(), GpuError> {
        check_len(from.len(), to.len())?;
        let (wide, narrow) = (as_device_mut_ptr(&to), as_device_ptr(&from).cast_mut().cast());
        let arguments = Convert { wide, narrow, count: from.len() as u64 };
        let (shape, target) = (self.linear(from.len()), to.as_view());
        // SAFETY: pointers are to views of this length; bfloat16 is its bits.
        unsafe { self.launch("widen", shape, &[target.memory, from.memory], &arguments) }
    }

    /// Converts to bf16, rounded to nearest, ties to even.
    ///
    /// # Errors
    /// Lengths differ, or the driver fails.
    pub fn narrow(&self, to: ViewMut<'_, bf16>, from: View<'_, f32>) -> Result<(), GpuError> {
        check_len(from.len(), to.len())?;
        let (wide, narrow) = (as_device_ptr(&from).cast_mut(), as_device_mut_ptr(&to).cast());
        let arguments = Convert { wide, narrow, count: from.len() as u64 };
        let (shape, target) = (self.linear(from.len()), to.as_view());
        // SAFETY: pointers are to views of this length; bfloat16 is its bits.
        unsafe { self.launch("narrow", shape, &[target.memory, from.memory], &arguments) }
    }
}
