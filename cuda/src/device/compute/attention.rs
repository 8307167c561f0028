//! Launches of causal attention, forward and backward.

use crate::device::compute::{Compute, as_device_mut_ptr, as_device_ptr, check_len, to_u32};
use crate::device::model::Attention;
use crate::device::{GpuError, View, ViewMut};
use std::ptr::null_mut;

/// Shape of the input of attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionShape {
    /// Heads of each row.
    pub count: usize,
    /// Columns of each, at most 128.
    pub depth: usize,
    /// Rows of each sequence.
    pub sequence: usize,
}

impl Compute {
    /// Computes output = softmax(q kᵀ / √depth) v of each head, causally within each sequence of
    /// `input`: rows of queries | keys | values. `log_sums` gets a number for each row and head,
    /// for the backward pass.
    ///
    /// # Errors
    /// Lengths do not match, or the driver fails.
    pub fn attention(
        &self,
        heads: AttentionShape,
        input: View<'_, f32>,
        output: ViewMut<'_, f32>,
        log_sums: ViewMut<'_, f32>,
    ) -> Result<(), GpuError> {
        let mut arguments = heads.arguments(&input, output.len(), log_sums.len())?;
        (arguments.output, arguments.log_sums) = (as_device_mut_ptr(&output), as_device_mut_ptr(&log_sums));
        let (output, log_sums) = (output.as_view(), log_sums.as_view());
        let memories = [input.memory, output.memory, log_sums.memory];
        // SAFETY: pointers are to views of these extents.
        unsafe { self.launch("attention", heads.shape(&arguments), &memories, &arguments) }
    }

    /// Computes the gradient of the input, into `grads`, from the gradient of the output,
    /// `of_output`. `room` has as many numbers as `log_sums`.
    ///
    /// # Errors
    /// Lengths do not match, or the driver fails.
    pub fn attention_backward(
        &self,
        heads: AttentionShape,
        [input, log_sums, of_output]: [View<'_, f32>; 3],
        grads: ViewMut<'_, f32>,
        room: ViewMut<'_, f32>,
    ) -> Result<(), GpuError> {
        let mut arguments = heads.arguments(&input, of_output.len(), log_sums.len())?;
        check_len(grads.len(), input.len())?;
        check_len(room.len(), log_sums.len())?;
        (arguments.output, arguments.log_sums) =
            (as_device_ptr(&of_output).cast_mut(), as_device_ptr(&log_sums).cast_mut());
        (arguments.grads, arguments.means) = (as_device_mut_ptr(&grads), as_device_mut_ptr(&room));
        let (grads, room) = (grads.as_view(), room.as_view());
        let memories = [input.memory, log_sums.memory, of_output.memory, grads.memory, room.memory];
        let shape = heads.shape(&arguments);
        // SAFETY: pointers are to views of these extents; `grads` and `room` alone are written.
        unsafe { self.launch("attention_backward_q", shape, &memories, &arguments)? };
        // SAFETY: as above; `room` has been filled by the launch before it.
        unsafe { self.launch("attention_backward_kv", shape, &memories, &arguments) }
    }
}

impl AttentionShape {
    fn arguments(self, input: &View<'_, f32>, output: usize, log_sums: usize) -> Result<Attention, GpuError> {
        let Self { count, depth, sequence } = self;
        if depth > Attention::DEPTH_MAX {
            return Err(GpuError::LengthMismatch { found: depth, wanted: Attention::DEPTH_MAX });
        }
        let sequences = input.len().checked_div(3 * count * depth * sequence).unwrap_or(0);
        let rows = sequences * sequence;
        check_len(input.len(), 3 * rows * count * depth)?;
        check_len(output, rows * count * depth)?;
        check_len(log_sums, rows * count)?;
        Ok(Attention {
            input: as_device_ptr(input),
            output: null_mut(),
            grads: null_mut(),
            log_sums: null_mut(),
            means: null_mut(),
            sequences: to_u32(sequences)?,
            length: to_u32(sequence)?,
            heads: to_u32(count)?,
            depth: to_u32(depth)?,
            scale: 1.0 / (depth as f32).sqrt(),
            unused: 0,
        })
    }

    /// Launches a block for each tile of 16 queries, or keys, of each head.
    fn shape(self, arguments: &Attention) -> (u64, u32) {
        let heads = u64::from(arguments.sequences) * self.count as u64;
        (heads * self.sequence.div_ceil(16) as u64, Attention::THREADS)
    }
}
