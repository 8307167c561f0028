//! Order in which a step uses the units of a model, as a value.

use crate::parameter::{Inventory, ParameterId, UnitId};
use std::ops::Range;

/// Direction of a pass through the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the input to the loss.
    Forward,
    /// From the loss to the input.
    Backward,
}

/// Computation of a visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Work {
    /// Outputs.
    Forward,
    /// Gradients of inputs and weights.
    Backward,
    /// Gradients of inputs. Those of large weights follow in [`Work::WeightGrads`].
    InputGrads,
    /// Gradients of the weights that [`Work::InputGrads`] left out.
    WeightGrads,
}

impl Work {
    /// Returns the direction; `None` if the weights of the unit are not used.
    pub fn direction(self) -> Option<Direction> {
        match self {
            Self::Forward => Some(Direction::Forward),
            Self::Backward | Self::InputGrads => Some(Direction::Backward),
            Self::WeightGrads => None,
        }
    }

    /// Returns true for a pass that needs gradients of outputs.
    pub fn is_backward(self) -> bool {
        self != Self::Forward
    }

    /// Returns true if gradients of weights are complete afterwards.
    pub fn completes_gradients(self) -> bool {
        matches!(self, Self::Backward | Self::WeightGrads)
    }
}

/// Use of one unit by one micro-batch, or by several in a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visit {
    /// The computation.
    pub work: Work,
    /// The unit.
    pub unit: UnitId,
    /// The micro-batches, in order.
    pub micro_batches: Range<usize>,
}

/// All visits of a step on one rank, in order.
///
/// Strategies read from it which weights are needed next, and when a gradient is complete.
///
/// ```
/// use unisono_nn::step_plan::{StepPlan, Work};
///
/// let plan = StepPlan::depth_first(2, 1);
/// let order: Vec<_> = plan.visits().iter().map(|visit| (visit.work, visit.unit.0)).collect();
/// assert_eq!(order[..2], [(Work::Forward, 0), (Work::Forward, 1)]);
/// assert_eq!(order[2..], [(Work::Backward, 1), (Work::Backward, 0)]);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepPlan {
    visits: Vec<Visit>,
}

impl StepPlan {
    /// Creates a plan of these visits. Each micro-batch must go through its units in their order,
    /// and back in the reverse order. Nothing checks that.
    pub fn new(visits: Vec<Visit>) -> Self {
        Self { visits }
    }

    /// Creates a plan that takes each micro-batch forward and back before the next one, through
    /// `units` units.
    pub fn depth_first(units: usize, micro_batches: usize) -> Self {
        Self::breadth_first(units, micro_batches, 1)
    }

    /// Creates a plan that takes `at_once` micro-batches together: each unit computes all of them
    /// before the next unit starts (Lamy-Poirier, "Breadth-first pipeline parallelism", MLSys
    /// 2023). The weights of a unit are then needed once for all of them.
    ///
    /// # Panics
    /// Panics if `at_once` is 0.
    pub fn breadth_first(units: usize, micro_batches: usize, at_once: usize) -> Self {
        let group = |first: usize| {
            let micro_batches = first..micro_batches.min(first + at_once);
            let forward = visits(Work::Forward, 0..units, micro_batches.clone());
            forward.chain(visits(Work::Backward, (0..units).rev(), micro_batches))
        };
        Self::new((0..micro_batches).step_by(at_once).flat_map(group).collect())
    }

    /// Creates a plan without backward, for one micro-batch.
    pub fn forward_only(units: usize) -> Self {
        Self::new(visits(Work::Forward, 0..units, 0..1).collect())
    }

    /// Returns the visits in order.
    pub fn visits(&self) -> &[Visit] {
        &self.visits
    }

    /// Returns the visits that use weights, in order.
    pub fn weight_uses(&self) -> impl Iterator<Item = (UnitId, Direction)> + '_ {
        self.visits.iter().filter_map(|visit| Some((visit.unit, visit.work.direction()?)))
    }

    /// Returns the uses of weights that must gather the weights of their unit, if every use frees
    /// them. A use that follows a use of the same unit finds them present, so it is left out.
    pub fn gathers(&self) -> impl Iterator<Item = (UnitId, Direction)> + '_ {
        let mut last = None;
        self.weight_uses().filter(move |&(unit, _)| last.replace(unit) != Some(unit))
    }

    /// Returns the number of times that each unit completes gradients.
    pub fn backward_passes(&self) -> usize {
        let mut complete = self.visits.iter().filter(|visit| visit.work.completes_gradients());
        let first = complete.clone().next().map(|visit| visit.unit);
        complete.by_ref().filter(|visit| Some(visit.unit) == first).count()
    }

    /// Returns the parameters that get a contribution to their gradient, in order. A parameter
    /// occurs once for each visit of each unit that uses it. Leaves out parameters that are
    /// elsewhere.
    pub fn contributions<'a>(&'a self, inventory: &'a Inventory) -> impl Iterator<Item = ParameterId> + 'a {
        let complete = self.visits.iter().filter(|visit| visit.work.completes_gradients());
        // Backward of a unit reaches its parameters from the last to the first.
        complete.flat_map(|visit| inventory.present_of(visit.unit).rev())
    }
}

/// Returns the visits of these units in turn.
fn visits(
    work: Work,
    units: impl Iterator<Item = usize>,
    micro_batches: Range<usize>,
) -> impl Iterator<Item = Visit> {
    units.map(move |unit| Visit { work, unit: UnitId(unit), micro_batches: micro_batches.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn micro_batches_are_grouped_breadth_first() {
        let plan = StepPlan::breadth_first(2, 3, 2);
        let visits: Vec<_> =
            plan.visits().iter().map(|v| (v.work, v.unit.0, v.micro_batches.clone())).collect();
        let (forward, backward) = (Work::Forward, Work::Backward);
        assert_eq!(
            visits,
            [
                (forward, 0, 0..2),
                (forward, 1, 0..2),
                (backward, 1, 0..2),
                (backward, 0, 0..2),
                (forward, 0, 2..3),
                (forward, 1, 2..3),
                (backward, 1, 2..3),
                (backward, 0, 2..3),
            ]
        );
        assert_eq!(StepPlan::depth_first(2, 3), StepPlan::breadth_first(2, 3, 1));
    }
}
