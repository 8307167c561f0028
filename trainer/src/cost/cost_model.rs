//! Sizes of one rank's part of a configured run, from its parameters.

use crate::config::{Config, StrategyKind};
use crate::data::BatchPlan;
use crate::flat::Layout;
use crate::mesh::Mesh;
use crate::parallel::Settings;
use crate::parameter::{Domain, Inventory, ParameterId};
use crate::stages::Stages;

/// Inputs of the formulas: one rank's part of a run.
#[derive(Clone, Copy)]
pub(crate) struct CostModel<'a> {
    pub(crate) config: &'a Config,
    pub(crate) inventory: &'a Inventory,
    pub(crate) mesh: Mesh,
    pub(crate) batch: BatchPlan,
    pub(crate) stages: &'a Stages,
    /// Pipeline coordinate of the rank.
    pub(crate) stage: usize,
}

/// Parameters of a rank with one strategy, outside or in experts.
pub(super) struct ModelPart {
    pub(super) kind: StrategyKind,
    /// Number of ranks that average their gradients and share their state.
    pub(super) ranks: usize,
    /// Inventory in which all other parameters are elsewhere.
    pub(super) inventory: Inventory,
}

impl CostModel<'_> {
    /// Returns the parameters with equal strategies and domains.
    pub(super) fn parts(&self, units: &[StrategyKind]) -> impl Iterator<Item = ModelPart> {
        let kinds = StrategyKind::ALL.into_iter().filter(|kind| units.contains(kind));
        let parts = kinds.flat_map(|kind| [(kind, Domain::Dense), (kind, Domain::Expert)]);
        let parts = parts.filter(|&(_, domain)| domain == Domain::Dense || self.inventory.has_experts());
        parts.map(|(kind, domain)| {
            let is_own = |id: ParameterId| {
                let parameter = &self.inventory[id];
                let is_meant = units[self.inventory.unit_of(id).0] == kind && parameter.domain == domain;
                is_meant && parameter.residency.is_here()
            };
            let ranks = match domain {
                Domain::Dense => self.mesh.data_size(),
                Domain::Expert => self.mesh.expert_data_size(),
            };
            ModelPart { kind, ranks, inventory: self.inventory.restrict(is_own) }
        })
    }

    /// Returns the settings and buckets of a part.
    pub(super) fn layout(&self, part: &ModelPart) -> (Settings, Layout) {
        let mut config = self.config.clone();
        config.strategy.kind = part.kind;
        let settings = config.settings();
        let layout = settings.layout(part.kind.parallel_kind(), &part.inventory, part.ranks);
        (settings, layout)
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
