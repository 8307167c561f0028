//! Pipeline stages of a run.

use crate::{BatchPlan, GptShape};
use std::ops::Range;
use unisono_nn::error::Result;
use unisono_nn::parameter::{Inventory, Parameter, UnitId};
use unisono_nn::step_plan::StepPlan;
use unisono_parallel::pipeline::{Op, Program, Schedule, Split};

/// Stages of a model, and the order of their work. `None` runs the whole model on one rank.
pub struct Stages(Option<Pipeline>);

struct Pipeline {
    schedule: Schedule,
    /// Units of each stage.
    units: Vec<Range<usize>>,
}

/// Activations that a pipeline rank holds at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeldLayers {
    /// Sum over micro-batches of the layers whose activations are held.
    pub(crate) layers: usize,
    /// Micro-batches in the last stage.
    pub(crate) micro_batches: usize,
    /// Sum over micro-batches of the layers whose keys and values, or their gradients, are kept for
    /// other micro-sequences.
    pub(crate) earlier_kv: usize,
}

impl Stages {
    /// Returns the only stage of a run without a pipeline.
    pub fn single() -> Self {
        Self(None)
    }

    /// Divides a model of `layers` layers over the stages of `schedule`.
    ///
    /// # Errors
    /// Fails as [`Split::divide`] does, for example for a model with too few layers.
    pub fn new(schedule: Schedule, split: &Split, layers: usize) -> Result<Self> {
        let units = split.divide(layers, schedule.stages())?;
        Ok(Self(Some(Pipeline { schedule, units })))
    }

    /// Keeps the units of the rank `stage` of the pipeline. Returns true if it shares a parameter
    /// with another rank.
    pub fn keep_own(&self, stage: usize, inventory: &mut Inventory) -> bool {
        let Some(Pipeline { schedule, units }) = &self.0 else { return false };
        let owner = |unit: UnitId| {
            let of_unit = units.iter().position(|units| units.contains(&unit.0));
            schedule.location(of_unit.expect("stages hold all units")).0
        };
        inventory.keep_units(|unit| owner(unit) == stage);
        inventory.parameters.iter().any(|parameter| parameter.residency.is_tied())
    }

    /// Returns the program of a step on the rank `stage` of the pipeline.
    pub fn program(&self, stage: usize, batch: &BatchPlan, inventory: &Inventory) -> Program {
        match &self.0 {
            Some(Pipeline { schedule, units }) => Program::new(schedule, stage, units),
            None => {
                let at_once = batch.breadth_first * batch.micro_sequences;
                let plan = StepPlan::breadth_first(inventory.units.len(), batch.micro_count(), at_once);
                Program { plan, ..Program::default() }
            }
        }
    }

    /// Returns the activations that the rank `stage` of the pipeline holds at most; `None` without
    /// a pipeline.
    pub(crate) fn held(&self, stage: usize) -> Option<HeldLayers> {
        let Pipeline { schedule, units } = self.0.as_ref()?;
        let mut held = HeldLayers { layers: 0, micro_batches: 0, earlier_kv: 0 };
        let (mut layers, mut in_last, mut earlier_kv) = (0, 0, 0);
        let last = schedule.stages() - 1;
        for op in &schedule.rows[stage] {
            let Some((micro, chunk)) = op.place() else { continue };
            let part = micro % schedule.micro_sequences;
            let of_op = schedule.stage(stage, chunk);
            let size = layer_count(&units[of_op], units);
            match op {
                Op::Forward { .. } => {
                    (layers, in_last) = (layers + size, in_last + usize::from(of_op == last));
                    earlier_kv += if part == 0 { size } else { 0 };
                }
                Op::Backward { .. } | Op::BackwardWeights { .. } => {
                    (layers, in_last) = (layers - size, in_last - usize::from(of_op == last));
                }
                _ => {}
            }
            if let Op::Backward { .. } | Op::BackwardInput { .. } = op {
                // The last micro-sequence makes the gradients of all, and the first frees both.
                earlier_kv += if part + 1 == schedule.micro_sequences { size } else { 0 };
                held.earlier_kv = held.earlier_kv.max(earlier_kv);
                earlier_kv -= if part == 0 { 2 * size } else { 0 };
            }
            held.layers = held.layers.max(layers);
            held.micro_batches = held.micro_batches.max(in_last);
        }
        Some(held)
    }

    /// Returns the program of the forward of one micro-batch.
    pub fn forward_program(&self, stage: usize, inventory: &Inventory) -> Program {
        match &self.0 {
            Some(Pipeline { schedule, units }) => Program::forward_only(schedule, stage, units),
            None => Program { plan: StepPlan::forward_only(inventory.units.len()), ..Program::default() },
        }
    }
}

/// Returns the number of layers of a stage: its units without embedding and head.
fn layer_count(stage: &Range<usize>, stages: &[Range<usize>]) -> usize {
    let end = stages.last().map_or(0, |last| last.end);
    stage.len() - usize::from(stage.start == 0) - usize::from(stage.end == end)
}

/// Returns the multiply-add operations of each unit per token: matrix products, and attention in
/// layers. An embedding has none.
pub fn unit_costs(gpt: &GptShape, inventory: &Inventory) -> Vec<f64> {
    let attention = gpt.context * gpt.query_width();
    let products = |unit| {
        let matrices = inventory.parameters_of(unit).map(|id| &inventory[id]);
        matrices.filter(|parameter| parameter.shape.len() > 1).map(Parameter::count).sum::<usize>()
    };
    let cost = |number| match number {
        0 => 0,
        _ if number + 1 == inventory.units.len() => products(UnitId(number)),
        _ => products(UnitId(number)) + attention,
    };
    (0..inventory.units.len()).map(|number| cost(number) as f64).collect()
}
