//! Sizes of one rank's part of a configured run, from its parameters.

use crate::config::{Config, StrategyKind};
use crate::flat::Layout;
use crate::mesh::Mesh;
use crate::parallel::Settings;
use crate::parameter::Inventory;
use crate::train::{BatchPlan, Stages};

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

impl CostModel<'_> {
    /// Returns the parameters of the units with equal strategies.
    pub(super) fn parts(&self, units: &[StrategyKind]) -> impl Iterator<Item = (StrategyKind, Inventory)> {
        let kinds = StrategyKind::ALL.into_iter().filter(|kind| units.contains(kind));
        kinds.map(|kind| (kind, self.inventory.restrict(|unit| units[unit.0] == kind)))
    }

    /// Returns the settings and buckets of the parameters with one strategy.
    pub(super) fn layout(&self, kind: StrategyKind) -> (Settings, Layout) {
        let mut config = self.config.clone();
        config.strategy.kind = kind;
        let settings = config.settings();
        let layout = settings.layout(kind.parallel_kind(), self.inventory, self.mesh.data_size());
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
