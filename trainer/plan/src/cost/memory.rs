//! Memory of a rank: kept weights, gradients and optimizer state, and the peak of activations.

use crate::RunShape;
use crate::cost::CostModel;
use crate::cost::activations::ActivationModel;
use crate::cost::cost_model::ModelPart;
use unisono_nn::allocator::AllocClass;
use unisono_nn::parameter::{Dtype, Inventory};
use unisono_parallel::bucket::{Bucket, Layout};
use unisono_parallel::data_parallel::GroupBytes;
use unisono_parallel::data_parallel::ParallelKind;
use unisono_parallel::data_parallel::ReduceFrequency;

/// Number of the classes of predicted bytes that are in memory; the last one is offloaded.
const IN_MEMORY: usize = 4;

/// Returns the sum of the predicted bytes that are in memory.
pub fn in_memory(memory: [usize; 5]) -> usize {
    memory[..IN_MEMORY].iter().fold(0, |sum, &bytes| sum.saturating_add(bytes))
}

/// Returns the predicted bytes in memory by class, as `format` writes them.
pub fn classes_in_memory(memory: [usize; 5], format: impl Fn(usize) -> String) -> String {
    let classes = AllocClass::ALL.iter().zip(memory).take(IN_MEMORY);
    classes.map(|(class, bytes)| format!("{} {}", class.name(), format(bytes))).collect::<Vec<_>>().join(", ")
}

impl CostModel<'_> {
    /// Returns the bytes of weights, gradients and optimizer state that each rank keeps between
    /// backward and step, the peak of activations, and the offloaded bytes. Includes padding. If
    /// ranks differ, the largest rank counts. `units` has the strategy of each unit.
    pub fn memory(&self, units: &[ParallelKind]) -> [usize; 5] {
        let mut sums = [0, 0, 0, self.activations(), 0];
        for part in self.parts(units) {
            let kept = self.kept(&part);
            sums.iter_mut().zip(kept).for_each(|(sum, bytes)| *sum += bytes);
        }
        sums
    }

    /// Returns the bytes as [`CostModel::memory`] does, but with gradients at their peak. Ranks
    /// that shard gradients keep whole ones until the last of several micro-batches, unless they
    /// reduce each.
    pub fn memory_at_peak(&self, units: &[ParallelKind]) -> [usize; 5] {
        let mut sums = self.memory(units);
        let program = self.stages.program(self.stage, &self.batch, self.inventory);
        let settings = &self.run.settings;
        if program.plan.backward_passes() == 1 || settings.reduce_each == ReduceFrequency::MicroBatch {
            return sums;
        }
        for part in self.parts(units).filter(|part| part.kind.shards_gradients()) {
            let layout = self.layout(&part);
            let group = bytes_of_layout(self.run, &part.inventory, &layout);
            let ([_, full, _], [_, kept, _]) = (group.state, group.kept(part.kind, part.groups.shards));
            // Shards of the first buckets appear before these are freed.
            let first = layout.buckets.iter().take(settings.max_pending_reductions.max(1));
            let first =
                first.map(|bucket| trained_elements(bucket) * bucket.grad_dtype.size()).sum::<usize>();
            sums[1] += full as usize + first / part.groups.shards - kept as usize;
        }
        sums
    }

    /// Returns the bytes that each rank keeps of a part, as [`CostModel::memory`] does, but no
    /// activations.
    fn kept(&self, part: &ModelPart) -> [usize; 5] {
        let group = bytes_of_layout(self.run, &part.inventory, &self.layout(part));
        let kept = group.kept(part.kind, part.groups.shards);
        let [weights, gradients, state] = kept.map(|bytes| bytes as usize);
        let (state, offloaded) = if self.run.settings.offload.is_some() { (0, state) } else { (state, 0) };
        [weights, gradients, state, 0, offloaded]
    }

    fn activations(&self) -> usize {
        let (micro, breadth) = (self.batch.micro_batch, self.batch.breadth_first);
        let degrees = self.mesh.degrees();
        let rows = if self.run.sequence_parallel { degrees.tensor } else { 1 };
        let (parts, chunks) = (degrees.tensor, degrees.sequence_data);
        let model = ActivationModel {
            gpt: &self.run.gpt,
            shards: parts,
            rows,
            chunks,
            micro_batch: micro,
            breadth_first: breadth,
            micro_sequences: self.batch.micro_sequences,
            head_group: self.run.sharing.head_group_size(chunks),
        };
        let numbers = match self.stages.held(self.stage) {
            Some(held) => model.stage_peak(held, self.has_head()),
            None => model.peak(),
        };
        numbers * Dtype::F32.size()
    }
}

/// Returns the bytes of the state of all parameters in the buckets of `layout`.
pub(super) fn bytes_of_layout(run: &RunShape, inventory: &Inventory, layout: &Layout) -> GroupBytes {
    let sum = |bytes: &dyn Fn(&Bucket) -> usize| layout.buckets.iter().map(bytes).sum::<usize>() as f64;
    let weights = sum(&|bucket| bucket.count * bucket.dtype.size());
    let gradients = sum(&|bucket| trained_elements(bucket) * bucket.grad_dtype.size());
    let state = sum(&state_bytes(run, inventory));
    GroupBytes { state: [weights, gradients, state], ..GroupBytes::default() }
}

/// Returns the bytes of a bucket's moments, and of full-precision copies of 16-bit weights.
fn state_bytes(run: &RunShape, inventory: &Inventory) -> impl Fn(&Bucket) -> usize {
    let (optimizer, moment_size) = (&run.optimizer, run.settings.moment_dtype.size());
    move |bucket| {
        let moments = bucket.entries.iter().map(|piece| optimizer.moment_count(&inventory[piece.parameter]));
        let moments = moments.max().unwrap_or(0) * moment_size;
        let copy = if bucket.dtype == Dtype::Bf16 { Dtype::F32.size() } else { 0 };
        trained_elements(bucket) * (moments + copy)
    }
}

pub(super) fn trained_elements(bucket: &Bucket) -> usize {
    if bucket.trainable { bucket.count } else { 0 }
}
