//! Sizes of one rank's part of a run, from its parameters.

use crate::{BatchPlan, RunShape, Stages};
use unisono_nn::parameter::{Domain, Inventory, ParameterId};
use unisono_parallel::bucket::Layout;
use unisono_parallel::data_parallel::ParallelKind;
use unisono_parallel::data_parallel::{Settings, ShardGroups};
use unisono_parallel::mesh::Mesh;

/// Inputs of the formulas: one rank's part of a run.
#[derive(Clone, Copy)]
pub struct CostModel<'a> {
    /// Model and settings.
    pub run: &'a RunShape,
    /// Parameters of the rank, and of the other stages of its pipeline.
    pub inventory: &'a Inventory,
    /// Mesh of all ranks.
    pub mesh: Mesh,
    /// Division of the global batch.
    pub batch: BatchPlan,
    /// Stages of the pipeline.
    pub stages: &'a Stages,
    /// Pipeline coordinate of the rank.
    pub stage: usize,
}

/// Parameters of a rank with one strategy, outside or in experts.
pub(super) struct ModelPart {
    /// Strategy on these ranks.
    pub(super) kind: ParallelKind,
    /// Ranks that average their gradients, in groups that divide their state.
    pub(super) groups: ShardGroups,
    /// Inventory in which all other parameters are elsewhere.
    pub(super) inventory: Inventory,
}

impl CostModel<'_> {
    /// Returns the parameters with equal strategies and domains.
    pub(super) fn parts(&self, units: &[ParallelKind]) -> impl Iterator<Item = ModelPart> {
        let settings = &self.run.settings;
        let kind_of = |id: ParameterId| match settings.replicates(&self.inventory[id]) {
            true => ParallelKind::Replicated,
            false => units[self.inventory.unit_of(id).0],
        };
        let kinds: Vec<_> = (0..self.inventory.parameters.len()).map(|id| kind_of(ParameterId(id))).collect();
        let parts = ParallelKind::ALL.into_iter().filter(move |kind| kinds.contains(kind));
        let parts = parts.flat_map(|kind| [(kind, Domain::Dense), (kind, Domain::Expert)]);
        let parts = parts.filter(|&(_, domain)| domain == Domain::Dense || self.inventory.has_experts());
        let part = |(kind, domain): (ParallelKind, Domain)| {
            let is_own = |id: ParameterId| {
                let parameter = &self.inventory[id];
                kind_of(id) == kind && parameter.domain == domain && parameter.residency.is_here()
            };
            let inventory = self.inventory.restrict(is_own);
            let groups = self.shard_groups(settings, domain);
            let kind = kind.within(groups);
            ModelPart { kind, groups: groups.of_kind(kind), inventory }
        };
        parts.map(part).collect::<Vec<_>>().into_iter()
    }

    /// Returns the groups that divide the state of parameters outside or in experts.
    fn shard_groups(&self, settings: &Settings, domain: Domain) -> ShardGroups {
        match domain {
            Domain::Dense => ShardGroups::new(settings.shard_ranks, self.mesh.data_size()),
            Domain::Expert => {
                let settings = settings.for_experts(self.mesh.degrees().expert);
                ShardGroups::new(settings.shard_ranks, self.mesh.expert_data_size())
            }
        }
    }

    /// Returns the buckets of a part.
    pub(super) fn layout(&self, part: &ModelPart) -> Layout {
        self.run.settings.layout(part.kind, &part.inventory, part.groups.shards)
    }

    /// Returns the number of layers on this rank.
    pub(super) fn layers(&self) -> usize {
        let ends = usize::from(self.has_embedding()) + usize::from(self.has_head());
        self.inventory.own_units().count().saturating_sub(ends)
    }

    pub(super) fn has_embedding(&self) -> bool {
        self.inventory.units.first().is_some_and(|unit| unit.is_own)
    }

    pub(super) fn has_head(&self) -> bool {
        self.inventory.units.last().is_some_and(|unit| unit.is_own)
    }
}
