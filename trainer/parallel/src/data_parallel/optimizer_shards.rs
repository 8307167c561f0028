//! Optimizer state of the elements that this rank keeps.

use crate::bucket::{Bucket, BucketId, FlatBuffer, Layout};
use crate::data_parallel::data_group::DataGroup;
use crate::data_parallel::matrix_update::MatrixUpdate;
use crate::data_parallel::offload::{FileSlot, OffloadFile};
use crate::data_parallel::{Settings, SquareSum, optimizer_step};
use crate::optimizer::{Optimizer, Step};
use std::ops::Range;
use std::sync::Arc;
use unisono_nn::allocator::{AllocClass, Allocator};
use unisono_nn::error::Result;
use unisono_nn::parameter::{Dtype, Inventory, ParameterId};
use unisono_nn::process_group::ProcessGroup;

/// Optimizer state for part of every bucket: all of it, this rank's shard, or the buckets it owns.
pub(super) struct OptimizerShards {
    pub(super) inventory: Arc<Inventory>,
    pub(super) layout: Arc<Layout>,
    pub(super) memory: Allocator,
    pub(super) moment_dtype: Dtype,
    /// File for state that is not in use; `None` keeps state in memory.
    offload: Option<OffloadFile>,
    pub(super) shards: Vec<OptimizerShard>,
}

/// Optimizer state of one bucket.
pub(super) struct OptimizerShard {
    pub(super) range: Range<usize>,
    /// Weights in full precision, if the bucket keeps them in 16 bits.
    pub(super) master: Option<FlatBuffer>,
    /// Moments, in 32 or 16 bits.
    pub(super) moments: Vec<FlatBuffer>,
    /// File slots of the weights and moments.
    file_slots: Vec<FileSlot>,
}

/// Arguments of an optimizer step.
pub(super) struct StepContext<'a> {
    pub(super) optimizer: &'a dyn Optimizer,
    pub(super) step: &'a Step,
    /// Ranks that keep a shard each; `None` if this rank keeps all.
    pub(super) group: Option<&'a DataGroup>,
    /// Ranks that hold a tensor parallel part each.
    pub(super) tensor: Option<&'a ProcessGroup>,
}

/// Buffer that holds the elements of a bucket from `start` on.
pub(super) struct BufferFrom<N> {
    pub(super) buffer: N,
    pub(super) start: usize,
}

/// Range of one or several buffers.
pub(super) struct BufferSlice<N> {
    pub(super) buffer: N,
    pub(super) range: Range<usize>,
}

impl BufferFrom<FlatBuffer> {
    pub(super) fn view(&self) -> BufferFrom<&FlatBuffer> {
        BufferFrom { buffer: &self.buffer, start: self.start }
    }
}

impl OptimizerShards {
    /// Creates state for the elements of every bucket that `range` returns. Frozen buckets keep
    /// weights only.
    ///
    /// # Errors
    /// Fails if the offload file cannot be created or written.
    pub(super) fn new(
        inventory: &Arc<Inventory>,
        layout: &Arc<Layout>,
        memory: &Allocator,
        settings: &Settings,
        range: impl Fn(BucketId) -> Range<usize>,
    ) -> Result<Self> {
        let part = |bucket: BucketId| OptimizerShard {
            range: range(bucket),
            master: None,
            moments: Vec::new(),
            file_slots: Vec::new(),
        };
        let parts = layout.ids().map(part).collect();
        let offload = settings.offload.as_ref().map(|folder| OffloadFile::new(folder, memory)).transpose()?;
        let (inventory, layout) = (Arc::clone(inventory), Arc::clone(layout));
        let (memory, moment_dtype) = (memory.clone(), settings.moment_dtype);
        Ok(Self { inventory, layout, memory, moment_dtype, offload, shards: parts })
    }

    /// Keeps full-precision copies of a bucket's initial weights, if the bucket has 16-bit weights.
    ///
    /// # Errors
    /// Fails if the offload file cannot be written.
    pub(super) fn initialize(&mut self, bucket: BucketId, seed: u64) -> Result<()> {
        let part = &mut self.shards[bucket.0];
        if has_master_weights(&self.layout[bucket]) {
            let mut master = zeros(&self.memory, Dtype::F32, part.range.len())?;
            for (id, elements, place) in self.layout[bucket].entries_within(part.range.clone()) {
                let place = place.start - part.range.start..place.end - part.range.start;
                let start = |values: &mut [f32]| self.inventory[id].initialize(seed, elements, values);
                master.with_f32_mut(&self.memory, place, start)?;
            }
            part.master = Some(master);
        }
        self.store_state(bucket)
    }

    /// Loads a bucket's state into memory if it is offloaded.
    pub(super) fn load_state(&mut self, bucket: BucketId) -> Result<()> {
        let Some(offload) = &self.offload else { return Ok(()) };
        let (part, mut has_master) = (&mut self.shards[bucket.0], has_master_weights(&self.layout[bucket]));
        for place in &part.file_slots {
            let numbers = offload.read(place)?;
            // The first slot has the weights, because `store_state` writes them before the moments.
            match std::mem::take(&mut has_master) {
                true => part.master = Some(numbers),
                false => part.moments.push(numbers),
            }
        }
        Ok(())
    }

    /// Returns a bucket's state to the offload file, if there is one.
    pub(super) fn store_state(&mut self, bucket: BucketId) -> Result<()> {
        let Some(offload) = &mut self.offload else { return Ok(()) };
        let part = &mut self.shards[bucket.0];
        for (index, numbers) in part.master.take().into_iter().chain(part.moments.drain(..)).enumerate() {
            // Slots are reserved by the first write, because the number of moments depends on the
            // optimizer, which is known at the first step.
            if index == part.file_slots.len() {
                part.file_slots.push(offload.reserve(&numbers));
            }
            offload.write(&part.file_slots[index], numbers)?;
        }
        Ok(())
    }

    /// Adds the squares of a bucket's gradients in `range`: of each parameter the first elements,
    /// as many as `counted` returns.
    pub(super) fn add_squares(
        &self,
        bucket: BucketId,
        range: Range<usize>,
        gradients: BufferFrom<&FlatBuffer>,
        counted: impl Fn(ParameterId) -> usize,
        sum: &mut SquareSum,
    ) -> Result<()> {
        let offsets = |place: Range<usize>| place.start - gradients.start..place.end - gradients.start;
        let pieces = || self.layout[bucket].entries_within(range.clone());
        let counted_places = pieces().filter_map(|(id, elements, place)| {
            let count = counted(id).min(elements.end).saturating_sub(elements.start);
            (count > 0).then(|| offsets(place.start..place.start + count))
        });
        match sum {
            SquareSum::Exact(sum) => {
                for place in counted_places {
                    sum.add_squares(&gradients.buffer.view(&self.memory, place)?);
                }
            }
            SquareSum::Rounded(parts) => {
                let there = gradients.buffer.as_device().expect("flat memory of a GPU");
                // Padding is 0, so whole buckets need no selection.
                let counts_all = pieces().all(|(id, elements, _)| counted(id) >= elements.end);
                let ranges = if counts_all { vec![offsets(range.clone())] } else { counted_places.collect() };
                parts.push(there.square_sums(&ranges)?);
            }
        }
        Ok(())
    }

    /// Takes a step with the kept elements of a bucket. Whole-matrix steps gather the matrix from
    /// `group`, whose ranks keep a shard each; `None` if this rank keeps all.
    ///
    /// # Errors
    /// Returns the error of a failed collective. Fails if a matrix shares its bucket with other
    /// parameters.
    pub(super) fn update(
        &mut self,
        bucket: BucketId,
        weights: BufferFrom<&mut FlatBuffer>,
        gradients: BufferFrom<&FlatBuffer>,
        stride: &StepContext<'_>,
    ) -> Result<()> {
        if self.shards[bucket.0].range.is_empty() {
            return Ok(());
        }
        self.load_state(bucket)?;
        self.step_in_memory(bucket, weights, gradients, stride)?;
        self.store_state(bucket)
    }

    /// Takes the step with the state in memory.
    fn step_in_memory(
        &mut self,
        bucket: BucketId,
        weights: BufferFrom<&mut FlatBuffer>,
        gradients: BufferFrom<&FlatBuffer>,
        stride: &StepContext<'_>,
    ) -> Result<()> {
        let part = &mut self.shards[bucket.0];
        let moments = moment_count(&self.layout[bucket], &self.inventory, stride.optimizer);
        // The first step allocates, because only a step knows the optimizer, which decides the
        // number of moments.
        part.alloc_moments(&self.memory, self.moment_dtype, moments)?;
        let wide = optimizer_step::to_f32(gradients.buffer, &self.memory)?;
        let gradients =
            BufferFrom { buffer: wide.as_ref().unwrap_or(gradients.buffer), start: gradients.start };
        let mut directions = MatrixUpdate::for_bucket(&self.layout[bucket], &self.inventory, stride)?;
        if let Some(directions) = &mut directions {
            directions.gather_direction(part, &gradients, &self.memory)?;
        }
        for (id, _, place) in self.layout[bucket].entries_within(part.range.clone()) {
            let offsets = |start: usize| place.start - start..place.end - start;
            let (kept, parameter) = (offsets(part.range.start), &self.inventory[id]);
            let OptimizerShard { master, moments, .. } = part;
            let full = match master {
                Some(master) => BufferSlice { buffer: master, range: kept.clone() },
                None => BufferSlice { buffer: &mut *weights.buffer, range: offsets(weights.start) },
            };
            match &directions {
                Some(directions) => {
                    directions.apply(&self.memory, full, place.clone(), stride.step)?;
                }
                None => {
                    let gradient = BufferSlice { buffer: gradients.buffer, range: offsets(gradients.start) };
                    let moments = BufferSlice { buffer: &mut moments[..], range: kept.clone() };
                    optimizer_step::apply_step(&self.memory, full, gradient, moments, parameter, stride)?;
                }
            }
            // The step changes the full-precision copy, because 16 bits would lose most small
            // steps. Modules get the rounded copy.
            if let Some(master) = master {
                weights.buffer.copy_range(offsets(weights.start), master, kept)?;
            }
        }
        Ok(())
    }
}

/// Returns true if the optimizer keeps full-precision copies of a bucket's weights.
fn has_master_weights(bucket: &Bucket) -> bool {
    bucket.dtype == Dtype::Bf16 && bucket.trainable
}

/// Returns the number of moments per element of a bucket.
fn moment_count(bucket: &Bucket, inventory: &Inventory, optimizer: &dyn Optimizer) -> usize {
    let counts = bucket.entries.iter().map(|piece| optimizer.moment_count(&inventory[piece.parameter]));
    counts.max().unwrap_or(0)
}

impl OptimizerShard {
    pub(super) fn alloc_moments(&mut self, memory: &Allocator, dtype: Dtype, count: usize) -> Result<()> {
        while self.moments.len() < count {
            self.moments.push(zeros(memory, dtype, self.range.len())?);
        }
        self.moments.truncate(count);
        Ok(())
    }
}

fn zeros(memory: &Allocator, dtype: Dtype, count: usize) -> Result<FlatBuffer> {
    Ok(FlatBuffer::zeros(memory, AllocClass::Optimizer, dtype, count)?)
}

/// Returns weights or state in host memory.
pub(super) fn host_f32(numbers: &mut FlatBuffer) -> &mut [f32] {
    numbers.as_f32_mut().expect("of 32 bits, where flat memory lies")
}
