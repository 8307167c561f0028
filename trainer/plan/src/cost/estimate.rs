//! Estimate of a model on ranks of some hardware, in one way of parallelism.

use crate::cost::{Exchange, ExchangeKind, Hardware, ModelShape};
use serde::Serialize;
use unisono_parallel::data_parallel::GroupBytes;
use unisono_parallel::data_parallel::ParallelKind;
use unisono_parallel::data_parallel::{ShardGroups, shard_ranks_of_experts};

/// Parallelism of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ParallelConfig {
    /// Data parallel strategy.
    pub kind: ParallelKind,
    /// Tensor parallel degree.
    pub tensor: usize,
    /// Pipeline parallel degree.
    pub pipeline: usize,
    /// Context parallel degree, within the data ranks.
    pub context: usize,
    /// Expert parallel degree, within the data ranks.
    pub expert: usize,
    /// Number of ranks with the same part of the model, apart from experts.
    pub data: usize,
    /// Recomputes activations in backward, also if the model does not say so.
    pub activation_checkpointing: bool,
    /// Reduces gradients after each micro-batch, so that ranks that shard gradients never keep
    /// whole ones.
    pub reduces_each: bool,
}

impl ParallelConfig {
    /// Returns pure data parallelism with replicated state.
    pub fn replicated(ranks: usize) -> Self {
        Self {
            kind: ParallelKind::Replicated,
            tensor: 1,
            pipeline: 1,
            context: 1,
            expert: 1,
            data: ranks,
            activation_checkpointing: false,
            reduces_each: false,
        }
    }

    /// Returns true if data ranks form equal groups of `shard_ranks` neighbors, and so do those
    /// with the same experts. 0 stands for all of them.
    pub(crate) fn divides_into(&self, shard_ranks: usize) -> bool {
        let divides_experts =
            shard_ranks.is_multiple_of(self.expert) || self.expert.is_multiple_of(shard_ranks);
        shard_ranks == 0 || self.data.is_multiple_of(shard_ranks) && divides_experts
    }
}

/// Parameters of a rank, outside or in experts.
#[derive(Clone, Copy)]
struct DomainPart {
    /// Number of parameters before data parallel strategies shard them.
    parameters: f64,
    /// Strategy on the ranks with the same parameters.
    kind: ParallelKind,
    /// These ranks, in groups that divide state.
    groups: ShardGroups,
}

/// Model on hardware, in one way of parallelism. Ranks have equal parts without padding.
#[derive(Clone, Copy, Debug)]
pub struct Estimate<'a> {
    /// Model.
    pub shape: &'a ModelShape,
    /// Hardware.
    pub hardware: &'a Hardware,
    /// Parallelism.
    pub parallel: ParallelConfig,
}

impl Estimate<'_> {
    /// Returns the number of parameters of each rank before data parallel strategies shard them.
    pub fn parameters(&self) -> f64 {
        self.domains().map(|part| part.parameters).iter().sum()
    }

    /// Returns the parameters of a rank outside and in experts.
    fn domains(&self) -> [DomainPart; 2] {
        let ParallelConfig { kind, tensor, pipeline, expert, data, .. } = self.parallel;
        let ModelShape { parameters, expert_parameters: of_experts, shard_ranks, .. } = *self.shape;
        let parts = (tensor * pipeline) as f64;
        let repeated = self.shape.gpt.layers as f64 * self.shape.repeated_in_block(tensor);
        let part = |parameters, shard_ranks, ranks| {
            let groups = ShardGroups::new(shard_ranks, ranks);
            let kind = kind.within(groups);
            DomainPart { parameters, kind, groups: groups.of_kind(kind) }
        };
        let shard_ranks_of_expert = shard_ranks_of_experts(shard_ranks, expert);
        [
            part((parameters - of_experts + repeated) / parts, shard_ranks, data),
            part(of_experts / parts / expert as f64, shard_ranks_of_expert, data / expert),
        ]
    }

    /// Adds up the numbers that `numbers_of` returns for parameters outside and in experts. It gets
    /// their bytes in a step of `micro_batches`.
    fn sum<const N: usize>(
        &self,
        micro_batches: usize,
        numbers_of: impl Fn(GroupBytes, DomainPart) -> [f64; N],
    ) -> [f64; N] {
        let groups = self.domains().map(|part| numbers_of(self.group(part, micro_batches), part));
        std::array::from_fn(|index| groups.iter().map(|numbers| numbers[index]).sum())
    }

    /// Returns the bytes of these parameters, in a step of `micro_batches`.
    fn group(&self, part: DomainPart, micro_batches: usize) -> GroupBytes {
        let group = self.shape.bytes.group(part.parameters, micro_batches);
        GroupBytes { reduced: group.reduced * self.reductions(part.kind, micro_batches), ..group }
    }

    /// Returns the number of reductions of a gradient in a step.
    fn reductions(&self, kind: ParallelKind, micro_batches: usize) -> f64 {
        if self.reduces_in_each(kind) { micro_batches as f64 } else { 1.0 }
    }

    /// Returns true if gradients are reduced in the backward pass of each micro-batch.
    fn reduces_in_each(&self, kind: ParallelKind) -> bool {
        self.parallel.reduces_each && kind.shards_gradients()
    }

    /// Returns the strategy of parameters outside experts.
    fn dense_kind(&self) -> ParallelKind {
        self.domains()[0].kind
    }

    /// Returns the bytes of whole gradients that a rank keeps until the last of `micro_batches`,
    /// beyond its shard of them.
    pub fn accumulated(&self, micro_batches: usize) -> f64 {
        let ParallelConfig { kind, reduces_each, .. } = self.parallel;
        if micro_batches == 1 || reduces_each || !kind.shards_gradients() {
            return 0.0;
        }
        let beyond = |group: GroupBytes, part: DomainPart| {
            [group.state[1] - group.kept(part.kind, part.groups.shards)[1]]
        };
        self.sum(micro_batches, beyond)[0]
    }

    /// Returns the bytes of weights, gradients and optimizer state that each rank keeps.
    pub fn kept(&self) -> [f64; 3] {
        self.sum(1, |group, part| group.kept(part.kind, part.groups.shards))
    }

    /// Returns the bytes that each rank sends in forward, backward and step to ranks with the same
    /// part of the model.
    pub fn sent(&self, micro_batches: usize) -> [f64; 3] {
        self.sum(micro_batches, |group, part| {
            let [forward, backward, step] = group.sent(part.kind, part.groups.shards);
            [forward, backward + group.sent_between(part.groups), step]
        })
    }

    /// Returns the bytes each rank needs with this micro-batch: state, activations, and three whole
    /// units if weights are sharded.
    pub fn needed(&self, micro_batch: usize) -> f64 {
        let gathers = self.dense_kind() == ParallelKind::Zero3;
        let gathered = if gathers { 3.0 * self.largest_unit() } else { 0.0 };
        self.kept().iter().sum::<f64>() + gathered + micro_batch as f64 * self.activations()
    }

    /// Returns true if a rank has the memory for one sample at a time.
    pub fn fits(&self) -> bool {
        self.needed(1) <= self.hardware.usable_memory()
    }

    /// Returns the largest micro-batch that fits in memory.
    pub fn max_micro_batch(&self) -> usize {
        let left = self.hardware.usable_memory() - self.needed(0);
        (left / self.activations()).max(0.0) as usize
    }

    /// Returns the bytes of activations per sample. Pipeline stages do not reduce them, because the
    /// first stage holds as many micro-batches as there are stages.
    pub fn activations(&self) -> f64 {
        self.shape.activations(self.parallel.tensor, self.recomputes()) / self.parallel.context as f64
    }

    /// Returns true if activations are recomputed in backward.
    pub fn recomputes(&self) -> bool {
        self.parallel.activation_checkpointing || self.shape.gpt.activation_checkpointing
    }

    /// Returns the bytes of the gathered weights of the largest unit.
    pub(crate) fn largest_unit(&self) -> f64 {
        let ParallelConfig { tensor, expert, .. } = self.parallel;
        let parameters = self.shape.largest_unit(expert) + self.shape.repeated_in_block(tensor);
        self.shape.bytes.weight * (parameters / tensor as f64)
    }

    /// Returns the number of reduce-scatters and all-gathers per step, with buckets of this size. A
    /// sum between groups counts as both.
    pub fn collectives(&self, bucket: f64, micro_batches: usize) -> f64 {
        let [dense, _] = self.domains();
        let part = DomainPart { parameters: self.parameters(), ..dense };
        let counts = self.collective_counts(part, bucket, micro_batches);
        let group_sums = if part.groups.groups > 1 { 2.0 * counts.reduced } else { 0.0 };
        counts.exchanged(part.kind).iter().sum::<f64>() + group_sums
    }

    /// Returns the numbers of gathers, reductions and steps of buckets, in place of their bytes.
    fn collective_counts(&self, part: DomainPart, bucket: f64, micro_batches: usize) -> GroupBytes {
        let count = match part.kind {
            ParallelKind::Zero3 => self.shape.unit_count().div_ceil(self.parallel.pipeline) as f64,
            _ => bucket_count(self.shape.bytes.weight * part.parameters, bucket),
        };
        let gathered = [micro_batches as f64 * count; 2];
        let reduced = self.reductions(part.kind, micro_batches) * count;
        GroupBytes { gathered, reduced, stepped: count, ..GroupBytes::default() }
    }

    /// Returns the exchanges of weights and gradients in forward, backward and step: of parameters
    /// outside experts, and in them.
    pub(super) fn data_exchanges(&self, bucket: f64, micro_batches: usize) -> [Vec<Exchange>; 3] {
        let ParallelConfig { tensor, expert, .. } = self.parallel;
        let [others, experts] = self.domains();
        let parts = [(others, tensor), (experts, tensor * expert)];
        let in_groups = parts.map(|(part, apart)| self.exchanges_within(part, apart, bucket, micro_batches));
        let group_sums = parts.map(|(part, apart)| self.exchange_between(part, apart, bucket, micro_batches));
        let mut phases = [0, 1, 2].map(|phase| in_groups.map(|exchanges| exchanges[phase]).to_vec());
        phases[1].extend(group_sums);
        phases.map(|mut phase_exchanges| {
            phase_exchanges.retain(|exchange| exchange.bytes > 0.0);
            phase_exchanges
        })
    }

    /// Returns the exchanges of ranks that divide state in forward, backward and step. Neighbors
    /// are `apart` ranks from each other.
    fn exchanges_within(
        &self,
        part: DomainPart,
        apart: usize,
        bucket: f64,
        micro_batches: usize,
    ) -> [Exchange; 3] {
        let DomainPart { kind, groups: ShardGroups { shards, .. }, .. } = part;
        let counts = self.collective_counts(part, bucket, micro_batches).exchanged(kind);
        // One call is both parts of an all-reduce.
        let parts_per_call = if kind.shards_state() { 1.0 } else { 2.0 };
        let bytes = self.group(part, micro_batches).sent(kind, shards);
        [0, 1, 2].map(|phase| Exchange {
            kind: ExchangeKind::Data,
            ranks: shards,
            apart,
            collectives: counts[phase] / parts_per_call,
            messages: (shards - 1) as f64 * counts[phase],
            bytes: bytes[phase],
        })
    }

    /// Returns the sums of shards of gradients over the groups that divide state, whose neighbors
    /// are `apart` ranks from each other.
    fn exchange_between(
        &self,
        part: DomainPart,
        apart: usize,
        bucket: f64,
        micro_batches: usize,
    ) -> Exchange {
        let ShardGroups { shards, groups } = part.groups;
        let sums = self.collective_counts(part, bucket, micro_batches).reduced;
        Exchange {
            kind: ExchangeKind::Groups,
            ranks: groups,
            apart: apart * shards,
            collectives: sums,
            messages: 2.0 * (groups - 1) as f64 * sums,
            bytes: self.group(part, micro_batches).sent_between(part.groups),
        }
    }

    /// Returns the fraction of the communication in backward that each micro-batch has before the
    /// last, and that of the last: ZeRO-3 gathers weights in each, and gradients are reduced in
    /// each or in the last. `group_sums` is the fraction that is sums between groups.
    pub(super) fn backward_fractions(&self, micro_batches: usize, group_sums: f64) -> [f64; 2] {
        let kind = self.dense_kind();
        let gathers = f64::from(kind == ParallelKind::Zero3);
        let reduces = f64::from(self.reduces_in_each(kind));
        let [each, last] = [gathers + reduces, gathers + 1.0];
        let total = each * (micro_batches - 1) as f64 + last;
        let sums = group_sums / self.reductions(kind, micro_batches);
        let in_groups = 1.0 - group_sums;
        [in_groups * (each / total) + reduces * sums, in_groups * (last / total) + sums]
    }
}

/// Returns the number of buckets of this size for gradients of `bytes` bytes.
pub(crate) fn bucket_count(bytes: f64, bucket: f64) -> f64 {
    (bytes / bucket).ceil()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::{LinkClass, StepTime};

    const SHARDING: [ParallelKind; 3] = [ParallelKind::Zero1, ParallelKind::Zero2, ParallelKind::Zero3];

    #[test]
    fn groups_of_a_host_keep_gathers_off_the_network() {
        let hardware = Hardware::named("h100-80", 64).unwrap();
        let parallel =
            ParallelConfig { kind: ParallelKind::Zero3, ..ParallelConfig::replicated(hardware.ranks) };
        let evaluated = |shard_ranks: usize| {
            let shape = ModelShape { shard_ranks, ..ModelShape::from_parameters(1e9) };
            let estimate = Estimate { shape: &shape, hardware: &hardware, parallel };
            let exchanges = estimate.exchanges(1, 1, 25e6);
            let across =
                exchanges.iter().filter(|exchange| exchange.link_class(&hardware) == LinkClass::Across);
            let bytes: f64 = across.map(|exchange| exchange.bytes).sum();
            (bytes, StepTime::new(&estimate, 1, 1, 25e6))
        };
        let ((ungrouped, slow), (groups, fast)) = (evaluated(0), evaluated(hardware.per_host));
        // An eighth of the gradients goes to seven of eight hosts and back, instead of three times
        // the weights to all other ranks.
        let expected = 2.0 / 8.0 * 7.0 / 8.0 / (3.0 * 63.0 / 64.0);
        assert!((groups / ungrouped / expected - 1.0).abs() < 1e-9, "{groups} of {ungrouped}");
        assert!(fast.communication < slow.communication && fast.hidden <= fast.communication);
    }

    #[test]
    fn backward_divides_all_of_its_communication_among_passes() {
        let (shape, hardware) = (ModelShape::from_parameters(1e9), Hardware::named("h100-80", 8).unwrap());
        for kind in SHARDING {
            for (reduces_each, group_sums) in [(false, 0.0), (false, 0.4), (true, 0.0), (true, 0.4)] {
                let parallel = ParallelConfig { kind, reduces_each, ..ParallelConfig::replicated(8) };
                let estimate = Estimate { shape: &shape, hardware: &hardware, parallel };
                let [each, last] = estimate.backward_fractions(4, group_sums);
                let total = 3.0 * each + last;
                assert!((total - 1.0).abs() < 1e-9, "{parallel:?}: {each}, {last}");
                assert!(last >= group_sums / 4.0, "{parallel:?}: {each}, {last}");
            }
        }
    }

    #[test]
    fn groups_divide_data_ranks_and_experts() {
        let parallel = |data, expert| ParallelConfig { expert, ..ParallelConfig::replicated(data) };
        assert!(parallel(8, 1).divides_into(0) && parallel(8, 1).divides_into(4));
        assert!(!parallel(8, 1).divides_into(3));
        assert!(parallel(12, 2).divides_into(6) && parallel(12, 6).divides_into(2));
        assert!(!parallel(12, 4).divides_into(6));
    }
}
