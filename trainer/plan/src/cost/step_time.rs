//! Time of a step.

use crate::cost::{Estimate, Exchange, ExchangeKind, Hardware};
use serde::Serialize;
use unisono_nn::error::Result;
use unisono_parallel::pipeline::{Order, StageCosts, play};

/// Seconds of the parts of a step on one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct StepTime {
    /// Forward.
    pub forward: f64,
    /// Backward: twice the forward, and the recomputation.
    pub backward: f64,
    /// Communication within layers on links that nothing hides: tensor, sequence and expert
    /// parallel.
    pub in_layers: f64,
    /// Communication of weights and gradients on links.
    pub communication: f64,
    /// Part of it that computing hides.
    pub hidden: f64,
    /// Optimizer step.
    pub optimizer: f64,
    /// Idle time of a pipeline stage with the schedule 1F1B, and of its messages.
    pub bubble: f64,
    /// Processor time of exchanges of ranks that share cores, which nothing hides.
    pub on_cores: f64,
    /// Part of it for weights and gradients.
    pub data_on_cores: f64,
}

impl StepTime {
    /// Returns the times of a rank for `micro_batches` of `micro_batch` samples, and this bucket
    /// size.
    pub fn new(estimate: &Estimate<'_>, micro_batch: usize, micro_batches: usize, bucket: f64) -> Self {
        let Estimate { shape, hardware, parallel } = *estimate;
        let share = (parallel.tensor * parallel.pipeline * parallel.context) as f64;
        let ranks_per_core = 1.0 / hardware.cores_per_rank;
        let flops = (micro_batch * micro_batches) as f64 * shape.flops() / share;
        let rows = (micro_batch * shape.gpt.context) as f64 / parallel.context as f64;
        let computing = ranks_per_core * flops / hardware.rate(rows);
        let others: Vec<_> = estimate.other_exchanges(micro_batch, micro_batches).collect();
        let on_links = |holds: fn(ExchangeKind) -> bool| -> f64 {
            let selected = others.iter().filter(|exchange| holds(exchange.kind));
            selected.map(|exchange| exchange.link_time(hardware)).sum()
        };
        let on_cores = |exchange: &Exchange| exchange.core_time(hardware);
        let data = estimate.data_exchanges(bucket, micro_batches);
        let data_on_cores: f64 = data.iter().flatten().map(on_cores).sum();
        let communication = data.map(|exchanges| Phase::new(&exchanges, hardware));
        // Recomputation runs forward once more.
        let again = if estimate.recomputes() { computing / 3.0 } else { 0.0 };
        // While keys and values go round, a rank attends to those that it has.
        let round = on_links(|kind| kind == ExchangeKind::Ring);
        let attention = shape.attention_share() * (computing + again);
        let times = Self {
            forward: computing / 3.0,
            backward: computing * 2.0 / 3.0 + again,
            in_layers: on_links(ExchangeKind::is_in_layers) + (round - attention).max(0.0),
            communication: communication.iter().map(|phase| phase.seconds).sum(),
            optimizer: ranks_per_core * 2.0 * estimate.kept().iter().sum::<f64>() / hardware.memory_bandwidth,
            hidden: 0.0,
            bubble: 0.0,
            on_cores: data_on_cores + others.iter().map(on_cores).sum::<f64>(),
            data_on_cores,
        };
        let times = Self { hidden: times.hidden(estimate, &communication, micro_batches), ..times };
        let transfer = estimate.stage_message(micro_batch).link_time(hardware);
        times.with_stages(parallel.pipeline, micro_batches, transfer, ranks_per_core)
    }

    /// Returns the part of the communication in forward, backward and step that computing hides.
    fn hidden(&self, estimate: &Estimate<'_>, communication: &[Phase; 3], micro_batches: usize) -> f64 {
        let [forward, backward, step] = communication;
        let share = 1.0 / micro_batches as f64;
        let [in_forward, in_backward] = [share * self.forward, share * self.backward];
        let [each, last] = estimate.backward_fractions(micro_batches, backward.between);
        let pass = |count: usize, fraction, seconds| Pass { count: count as f64, fraction, seconds };
        forward.hidden(&[pass(micro_batches, share, in_forward)])
            + backward.hidden(&[pass(micro_batches - 1, each, in_backward), pass(1, last, in_backward)])
            // The first micro-batch waits for weights that the step changed.
            + step.hidden(&[pass(1, 1.0, in_forward)])
    }

    /// Adds the idle time of `stages` equal pipeline stages whose messages take `transfer`. Stages
    /// that share cores fill each other's idle time.
    fn with_stages(self, stages: usize, micro_batches: usize, transfer: f64, ranks_per_core: f64) -> Self {
        if stages == 1 {
            return self;
        }
        let (share, alone) = (1.0 / micro_batches as f64, 1.0 / ranks_per_core);
        let in_forward = self.in_layers * self.forward / self.working().max(f64::MIN_POSITIVE);
        let forward = share * (alone * self.forward + in_forward);
        let backward = share * (alone * self.backward + self.in_layers - in_forward);
        let costs = StageCosts::new([forward, backward / 2.0, backward / 2.0], 1, transfer);
        let duration = makespan(stages, micro_batches, costs).unwrap_or(f64::INFINITY);
        let idle = duration - (self.working() + self.in_layers);
        Self { bubble: idle.max(0.0), ..self }
    }

    /// Returns the time of forward and backward.
    fn working(&self) -> f64 {
        self.forward + self.backward
    }

    /// Returns the time of a step that hides no communication.
    pub fn naive(&self) -> f64 {
        self.working() + self.in_layers + self.on_cores + self.bubble + self.communication + self.optimizer
    }

    /// Returns the time of a step that communicates during computing.
    pub fn overlapped(&self) -> f64 {
        self.naive() - self.hidden
    }

    /// Returns the time in which a rank waits for the communication of an overlapped step.
    pub fn exposed(&self) -> f64 {
        self.in_layers + self.on_cores + self.communication - self.hidden
    }

    /// Returns the fraction of an overlapped step spent computing.
    pub fn utilization(&self) -> f64 {
        self.working() / self.overlapped()
    }
}

/// Communication of weights and gradients in forward, backward or step.
struct Phase {
    seconds: f64,
    /// Fraction of it that is sums between groups.
    between: f64,
    /// Number of collectives, without the sums that follow each reduction.
    collectives: f64,
}

impl Phase {
    fn new(exchanges: &[Exchange], hardware: &Hardware) -> Self {
        let time = |exchange: &Exchange| exchange.link_time(hardware);
        let is_between = |exchange: &&Exchange| exchange.kind == ExchangeKind::Groups;
        let seconds: f64 = exchanges.iter().map(time).sum();
        let group_seconds: f64 = exchanges.iter().filter(is_between).map(time).sum();
        let others = exchanges.iter().filter(|exchange| !is_between(exchange));
        Self {
            seconds,
            between: if seconds > 0.0 { group_seconds / seconds } else { 0.0 },
            collectives: others.map(|exchange| exchange.collectives).sum(),
        }
    }

    /// Returns the seconds that these passes hide. One collective has nothing beside it: the
    /// reduction of the gradients that a step computes last, or the gather of the weights that it
    /// needs first.
    fn hidden(&self, passes: &[Pass]) -> f64 {
        let all_but_one = 1.0 - 1.0 / self.collectives.max(1.0);
        let hidden = |pass: &Pass| pass.count * pass.seconds.min(pass.fraction * self.seconds);
        passes.iter().map(hidden).sum::<f64>().min(all_but_one * self.seconds)
    }
}

/// Equal passes of micro-batches, beside communication.
struct Pass {
    count: f64,
    /// Fraction of the communication that is beside each.
    fraction: f64,
    /// Seconds of each.
    seconds: f64,
}

/// Returns the time of 1F1B on equal stages. Beyond three times as many micro-batches as stages,
/// each further one takes the same time.
fn makespan(stages: usize, micro_batches: usize, costs: StageCosts) -> Result<f64> {
    let order = Order::find("1f1b")?;
    let played = |micro_batches| {
        let schedule = order.schedule(stages, micro_batches, 1)?;
        Ok(play(&schedule, &vec![costs; stages])?.makespan)
    };
    let [fewer, more] = [2 * stages, 3 * stages];
    if micro_batches <= more {
        return played(micro_batches);
    }
    let (fewer, more) = (played(fewer)?, played(more)?);
    Ok(more + (more - fewer) * (micro_batches - 3 * stages) as f64 / stages as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::{ModelShape, ParallelConfig};
    use unisono_parallel::data_parallel::ParallelKind;

    /// Returns the time of 8 data ranks of one host with four buckets.
    fn step(kind: ParallelKind, reduces_each: bool, micro_batches: usize, flops: f64) -> StepTime {
        let shape = ModelShape::from_parameters(1e9);
        let hardware = Hardware { flops, ..Hardware::named("h100-80", 8).unwrap() };
        let parallel = ParallelConfig { kind, reduces_each, ..ParallelConfig::replicated(8) };
        let estimate = Estimate { shape: &shape, hardware: &hardware, parallel };
        StepTime::new(&estimate, 1, micro_batches, 5e8)
    }

    fn near(left: f64, right: f64) {
        assert!((left / right - 1.0).abs() < 1e-9, "{left}, not {right}");
    }

    #[test]
    fn last_backward_hides_reductions_of_accumulated_gradients() {
        // Communication takes longer than computing.
        for micro_batches in [1, 4] {
            let share = 1.0 / micro_batches as f64;
            let step = |kind, each| step(kind, each, micro_batches, 1e17);
            let overlapped_step = step(ParallelKind::Replicated, false);
            assert!(
                overlapped_step.communication > overlapped_step.forward + overlapped_step.backward,
                "{overlapped_step:?}"
            );
            near(overlapped_step.hidden, share * overlapped_step.backward);
            let zero1 = step(ParallelKind::Zero1, false);
            near(zero1.hidden, share * (zero1.forward + zero1.backward));
            let each = step(ParallelKind::Zero2, true);
            near(each.hidden, each.backward + share * each.forward);
            let zero3 = step(ParallelKind::Zero3, false);
            near(zero3.hidden, zero3.forward + zero3.backward);
        }
    }

    #[test]
    fn longer_computing_hides_all_but_one_collective_of_a_phase() {
        let slow = |kind| step(kind, false, 2, 1e12);
        let slow_step = slow(ParallelKind::Replicated);
        near(slow_step.hidden, 0.75 * slow_step.communication);
        let zero1 = slow(ParallelKind::Zero1);
        near(zero1.hidden, 0.75 * zero1.communication);
        // Units of 12 layers: 24 gathers in forward, and 36 collectives in backward.
        let zero3 = slow(ParallelKind::Zero3);
        let units = ModelShape::from_parameters(1e9).unit_count() as f64;
        near(zero3.communication - zero3.hidden, zero3.communication / (5.0 * units) * 2.0);
    }

    #[test]
    fn one_rank_communicates_nothing() {
        let shape = ModelShape::from_parameters(1e9);
        let hardware = Hardware::named("h100-80", 1).unwrap();
        let parallel = ParallelConfig::replicated(1);
        let estimate = Estimate { shape: &shape, hardware: &hardware, parallel };
        let step = StepTime::new(&estimate, 1, 1, 25e6);
        assert_eq!([step.communication, step.hidden, step.exposed(), step.on_cores], [0.0; 4]);
        assert_eq!(step.overlapped(), step.naive());
    }
}
