//! Optimizer steps that need a whole matrix, although each rank keeps only a shard of its state.

use crate::bucket::{Bucket, FlatBuffer};
use crate::data_parallel::data_group::DataGroup;
use crate::data_parallel::optimizer_shards::{BufferFrom, BufferSlice, OptimizerShard, StepContext};
use crate::optimizer::{MatrixOptimizer, Step};
use std::ops::Range;
use unisono_nn::allocator::{AllocClass, Allocator};
use unisono_nn::error::{Error, Result};
use unisono_nn::parameter::{Dtype, Inventory, Parameter};
use unisono_nn::process_group::ProcessGroup;

/// Update of a bucket that holds one matrix.
pub(super) struct MatrixUpdate<'a> {
    optimizer: &'a dyn MatrixOptimizer,
    parameter: &'a Parameter,
    /// Number of elements of the bucket.
    count: usize,
    grad_scale: f32,
    /// Ranks that keep a shard each.
    data_group: Option<&'a DataGroup>,
    /// Ranks that hold a tensor parallel part of the matrix each.
    tensor_group: Option<&'a ProcessGroup>,
    /// Update direction of the whole bucket, once gathered.
    direction: Option<FlatBuffer>,
}

impl<'a> MatrixUpdate<'a> {
    /// Creates the update for a bucket whose only parameter needs a whole-matrix step; `None` for
    /// all other buckets.
    pub(super) fn for_bucket(
        bucket: &Bucket,
        inventory: &'a Inventory,
        stride: &StepContext<'a>,
    ) -> Result<Option<Self>> {
        let mut wholes = bucket.entries.iter().filter_map(|piece| {
            let parameter = &inventory[piece.parameter];
            stride
                .optimizer
                .as_matrix_optimizer(parameter)
                .map(|matrix_optimizer| (parameter, matrix_optimizer))
        });
        let Some((parameter, matrix_optimizer)) = wholes.next() else { return Ok(None) };
        if bucket.entries.len() > 1 {
            let text = format!("{} must be updated as a whole, and shares its bucket", parameter.name);
            return Err(Error::Unsupported(format!("{text}: pack by rows, or use another optimizer")));
        }
        let (count, factor) = (bucket.count, stride.step.grad_scale);
        let parts = stride.tensor.filter(|_| parameter.shard.is_some());
        Ok(Some(Self {
            optimizer: matrix_optimizer,
            parameter,
            count,
            grad_scale: factor,
            data_group: stride.group,
            tensor_group: parts,
            direction: None,
        }))
    }

    /// Computes the direction of this rank's elements, gathers the whole direction, and transforms
    /// it for the step.
    pub(super) fn gather_direction(
        &mut self,
        part: &mut OptimizerShard,
        gradients: &BufferFrom<&FlatBuffer>,
        memory: &Allocator,
    ) -> Result<()> {
        // Each rank keeps the momentum of its shard only, and sends the resulting direction.
        // Sending gradients would need the momentum of the whole matrix everywhere.
        let mut share = FlatBuffer::zeros(memory, AllocClass::Buffers, Dtype::F32, part.range.len())?;
        // The last shards can consist of padding, which has no moment and no gradient.
        let end = part.range.end.min(self.parameter.count());
        if part.range.start < end {
            let offsets = |start: usize| part.range.start - start..end - start;
            let (gradient, kept) = (
                BufferSlice { buffer: gradients.buffer, range: offsets(gradients.start) },
                offsets(part.range.start),
            );
            let moment = BufferSlice { buffer: &mut part.moments[0], range: kept.clone() };
            self.local_direction(memory, gradient, moment, BufferSlice { buffer: &mut share, range: kept })?;
        }
        let mut taken = match self.data_group {
            Some(group) => {
                let mut gathered = FlatBuffer::new(memory, AllocClass::Buffers, Dtype::F32, self.count)?;
                gathered.all_gather(&share, group.peers())?;
                gathered
            }
            None => share,
        };
        self.transform_direction(memory, &mut taken)?;
        self.direction = Some(taken);
        Ok(())
    }

    /// Adds the gradient to the moment and writes the resulting update to `direction`.
    fn local_direction(
        &self,
        memory: &Allocator,
        gradient: BufferSlice<&FlatBuffer>,
        moment: BufferSlice<&mut FlatBuffer>,
        direction: BufferSlice<&mut FlatBuffer>,
    ) -> Result<()> {
        let Some(lane) = memory.lane() else {
            let gradient = gradient.buffer.view(memory, gradient.range)?;
            let direction = direction.host_slice();
            let step = |moment: &mut [f32]| {
                self.optimizer.momentum_direction(&gradient, self.grad_scale, moment, direction);
            };
            return Ok(moment.buffer.with_f32_mut(memory, moment.range, step)?);
        };
        let (moment, direction) = (moment.device_view_mut(), direction.device_view_mut());
        Ok(self.optimizer.momentum_direction_on(
            lane,
            gradient.device_view(),
            self.grad_scale,
            moment,
            direction,
        )?)
    }

    /// Transforms the direction of this rank's part.
    fn transform_direction(&self, memory: &Allocator, taken: &mut FlatBuffer) -> Result<()> {
        match self.tensor_group {
            Some(parts) => self.transform_sharded(memory, taken, parts),
            None => self.transform_whole(memory, taken),
        }
    }

    /// Transforms the direction of the whole matrix.
    fn transform_whole(&self, memory: &Allocator, taken: &mut FlatBuffer) -> Result<()> {
        let [rows, columns] = self.dims();
        let matrix = BufferSlice { buffer: taken, range: 0..rows * columns };
        match memory.lane() {
            Some(lane) => {
                self.optimizer.transform_direction_on(lane, matrix.device_view_mut(), rows, columns)?
            }
            None => self.optimizer.transform_direction(matrix.host_slice(), rows, columns),
        }
        Ok(())
    }

    /// Returns the rows and columns of the whole matrix.
    fn dims(&self) -> [usize; 2] {
        let shape = self.parameter.global_shape();
        [shape[0], shape[1..].iter().product()]
    }

    /// Gathers the parts of all ranks, transforms the whole direction, and keeps this rank's part.
    fn transform_sharded(
        &self,
        memory: &Allocator,
        taken: &mut FlatBuffer,
        parts: &ProcessGroup,
    ) -> Result<()> {
        let (count, [rows, columns]) = (self.parameter.count(), self.dims());
        let room = |count| FlatBuffer::zeros(memory, AllocClass::Buffers, Dtype::F32, count);
        let (mut local, mut gathered, mut matrix) =
            (room(count)?, room(count * parts.size())?, room(rows * columns)?);
        local.copy_range(0..count, taken, 0..count)?;
        gathered.all_gather(&local, parts.comm())?;
        for part in 0..parts.size() {
            for block in blocks(&self.parameter.for_rank(part), columns) {
                block.copy(
                    memory,
                    BufferSlice { buffer: &gathered, range: part * count..(part + 1) * count },
                    &mut matrix,
                )?;
            }
        }
        self.transform_whole(memory, &mut matrix)?;
        // Blocks leave out the padding of a part, which must stay zero.
        local.zero()?;
        for block in blocks(self.parameter, columns) {
            block.reversed().copy(
                memory,
                BufferSlice { buffer: &matrix, range: 0..rows * columns },
                &mut local,
            )?;
        }
        Ok(taken.copy_range(0..count, &local, 0..count)?)
    }

    /// Applies the update to the elements `place` of the bucket.
    pub(super) fn apply(
        &self,
        memory: &Allocator,
        weights: BufferSlice<&mut FlatBuffer>,
        place: Range<usize>,
        step: &Step,
    ) -> Result<()> {
        let taken = BufferSlice { buffer: self.direction.as_ref().expect("gathered"), range: place };
        let (decay, step) = (self.parameter.weight_decay, &step.of(self.parameter));
        let Some(lane) = memory.lane() else {
            let taken = taken.buffer.view(memory, taken.range)?;
            self.optimizer.apply_direction(weights.host_slice(), &taken, decay, step);
            return Ok(());
        };
        Ok(self.optimizer.apply_direction_on(
            lane,
            weights.device_view_mut(),
            taken.device_view(),
            decay,
            step,
        )?)
    }
}

/// Block of rows of a matrix: offsets and strides in the part and in the whole matrix.
struct MatrixBlock {
    from: [usize; 2],
    to: [usize; 2],
    dims: [usize; 2],
}

/// Returns the blocks that a part holds of a matrix with this number of columns, without padding.
fn blocks(part: &Parameter, columns: usize) -> impl Iterator<Item = MatrixBlock> + use<> {
    let cut = part.shard.clone().expect("a part is cut");
    let (runs, local, rows): (Vec<_>, _, _) =
        (cut.runs().collect(), cut.local_size(), part.global_shape()[0]);
    let block = move |(here, there, count): (usize, usize, usize)| match cut.dim {
        0 => MatrixBlock {
            from: [here * columns, columns],
            to: [there * columns, columns],
            dims: [count, columns],
        },
        _ => MatrixBlock { from: [here, local], to: [there, columns], dims: [rows, count] },
    };
    runs.into_iter().filter(|(.., count)| *count > 0).map(block)
}

impl MatrixBlock {
    /// Swaps source and target.
    fn reversed(self) -> Self {
        Self { from: self.to, to: self.from, ..self }
    }

    /// Copies the block from `source` to its position in `target`.
    fn copy(
        &self,
        memory: &Allocator,
        source: BufferSlice<&FlatBuffer>,
        target: &mut FlatBuffer,
    ) -> Result<()> {
        let MatrixBlock { from: [start, stride], to: [place, step], dims: [rows, columns] } = *self;
        let first = source.range.start + start;
        if let Some(lane) = memory.lane() {
            // A lane copies only between a strided and a dense layout, so a block takes two copies.
            let mut dense = lane.stream().alloc_uninit(rows * columns)?;
            let source = BufferSlice { buffer: source.buffer, range: first..source.range.end }.device_view();
            lane.pack(dense.view_mut(..), source, &self.dims, &[stride, 1])?;
            let end = target.len();
            let target = BufferSlice { buffer: target, range: place..end }.device_view_mut();
            return Ok(lane.unpack(target, dense.view(..), &self.dims, &[step, 1])?);
        }
        for row in 0..rows {
            let (from_row, to_row) = (first + row * stride, place + row * step);
            target.copy_range(to_row..to_row + columns, source.buffer, from_row..from_row + columns)?;
        }
        Ok(())
    }
}
