//! Strategies by unit: some blocks of a model keep their state in one way, and others in another.

use crate::data_parallel::{
    DataParallel, LocalShard, ParallelKind, ProcessGroups, Settings, SquareSum, new_strategy,
};
use crate::optimizer::{Optimizer, Step};
use std::sync::Arc;
use std::time::Duration;
use unisono_nn::allocator::Allocator;
use unisono_nn::error::Result;
use unisono_nn::parameter::{Domain, Inventory, Parameter, ParameterId, UnitId};
use unisono_nn::step_plan::{Direction, StepPlan};
use unisono_nn::strategy::{DeviceStore, Strategy};

/// One strategy for each part of the model: the parameters with equal strategies and domains.
///
/// Every part has communicators of its own, so that the collectives of the parts need no common
/// order. A unit that uses parameters of another part gets them from that part. The bits of a step
/// are those of each strategy alone.
pub struct Mixed {
    parts: Vec<Box<dyn DataParallel>>,
    /// Part of each parameter.
    part_of: Vec<usize>,
}

impl Mixed {
    /// Creates a strategy in which every unit has the element of `units` with its number, apart
    /// from parameters below [`Settings::replicate_below`]. All ranks must pass the same.
    ///
    /// # Errors
    /// Fails as [`new_strategy`] does.
    ///
    /// # Panics
    /// Panics if there is not one strategy per unit.
    pub fn new(
        units: &[ParallelKind],
        inventory: &Inventory,
        team: &ProcessGroups,
        settings: &Settings,
        memory: &Allocator,
    ) -> Result<Self> {
        assert_eq!(units.len(), inventory.units.len(), "a strategy for each unit");
        let kind_of = |id: ParameterId| match settings.replicates(&inventory[id]) {
            true => ParallelKind::Replicated,
            false => units[inventory.unit_of(id).0],
        };
        let key = |id: ParameterId| (kind_of(id), inventory[id].domain);
        let mut keys: Vec<(ParallelKind, Domain)> = Vec::new();
        let mut part_of = Vec::new();
        for part_key in (0..inventory.parameters.len()).map(|id| key(ParameterId(id))) {
            part_of.push(keys.iter().position(|other| *other == part_key).unwrap_or_else(|| {
                keys.push(part_key);
                keys.len() - 1
            }));
        }
        let part = |(number, &(kind, domain)): (usize, &(ParallelKind, Domain))| {
            let part_inventory = Arc::new(
                inventory.restrict(|id| part_of[id.0] == number && inventory[id].residency.is_here()),
            );
            let (team, settings) = match domain {
                Domain::Dense => (team.duplicate()?, settings.clone()),
                Domain::Expert => (team.duplicate_for_experts()?, settings.for_experts(team.expert_ranks())),
            };
            new_strategy(kind, &part_inventory, team, &settings, memory)
        };
        let parts = keys.iter().enumerate().map(part).collect::<Result<_>>()?;
        Ok(Self { parts, part_of })
    }

    fn part(&self, id: ParameterId) -> &dyn DataParallel {
        &*self.parts[self.part_of[id.0]]
    }

    fn part_mut(&mut self, id: ParameterId) -> &mut dyn DataParallel {
        &mut *self.parts[self.part_of[id.0]]
    }

    fn for_each_part(&mut self, run: impl FnMut(&mut Box<dyn DataParallel>) -> Result<()>) -> Result<()> {
        self.parts.iter_mut().try_for_each(run)
    }
}

impl Strategy for Mixed {
    fn begin_step(&mut self, plan: &StepPlan) -> Result<()> {
        self.for_each_part(|part| part.begin_step(plan))
    }

    fn pre_unit(&mut self, unit: UnitId, way: Direction) -> Result<()> {
        // A unit can use parameters of several parts, for example a head that is tied to the
        // embedding.
        self.for_each_part(|part| part.pre_unit(unit, way))
    }

    fn post_unit(&mut self, unit: UnitId, way: Direction) -> Result<()> {
        self.for_each_part(|part| part.post_unit(unit, way))
    }

    fn grad_ready(&mut self, id: ParameterId) -> Result<()> {
        self.part_mut(id).grad_ready(id)
    }

    fn weights(&self, id: ParameterId) -> &[f32] {
        self.part(id).weights(id)
    }

    fn weights_and_gradient(&mut self, id: ParameterId) -> Option<(&[f32], &mut [f32])> {
        self.part_mut(id).weights_and_gradient(id)
    }

    fn device_store(&self, id: ParameterId) -> Option<&dyn DeviceStore> {
        self.part(id).device_store(id)
    }

    fn device_store_mut(&mut self, id: ParameterId) -> Option<&mut dyn DeviceStore> {
        self.part_mut(id).device_store_mut(id)
    }
}

impl DataParallel for Mixed {
    fn finish_backward(&mut self) -> Result<()> {
        self.for_each_part(|part| part.finish_backward())
    }

    fn square_sum(&mut self) -> Result<SquareSum> {
        let (first, others) = self.parts.split_first_mut().expect("a model has units");
        let mut squares = first.square_sum()?;
        for part in others {
            squares.add(part.square_sum()?);
        }
        Ok(squares)
    }

    fn finish_norm(&self, squares: SquareSum) -> Result<f64> {
        // Clipping needs one norm of the whole model. Any part can complete it, because all of them
        // have the tensor parallel ranks and the stages.
        self.parts[0].finish_norm(squares)
    }

    fn optimizer_step(&mut self, optimizer: &dyn Optimizer, step: &Step) -> Result<()> {
        self.for_each_part(|part| part.optimizer_step(optimizer, step))
    }

    fn wait_all(&mut self) -> Result<()> {
        self.for_each_part(|part| part.wait_all())
    }

    fn for_each_shard(&mut self, visit: &mut dyn FnMut(LocalShard<'_>) -> Result<()>) -> Result<()> {
        self.for_each_part(|part| part.for_each_shard(visit))
    }

    fn broadcast_params(&mut self) -> Result<()> {
        self.for_each_part(|part| part.broadcast_params())
    }

    fn is_copy(&self, id: ParameterId) -> bool {
        self.part(id).is_copy(id)
    }

    fn alloc_moments(&mut self, count: &dyn Fn(&Parameter) -> usize) -> Result<()> {
        self.for_each_part(|part| part.alloc_moments(count))
    }

    fn take_wait_time(&mut self) -> Duration {
        self.parts.iter_mut().map(|part| part.take_wait_time()).sum()
    }
}
