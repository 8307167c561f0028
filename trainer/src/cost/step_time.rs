//! Time of a step.

use crate::cost::{Estimate, Exchange, Hardware};
use crate::error::Result;
use crate::pipeline::{Order, StageCosts, play};
use serde::Serialize;

/// Seconds of the parts of a step on one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct StepTime {
    /// Forward.
    pub forward: f64,
    /// Backward: twice the forward, and the recomputation.
    pub backward: f64,
    /// Communication within layers, which nothing hides: tensor, sequence and expert parallel.
    pub in_layers: f64,
    /// Communication of weights and gradients.
    pub communication: f64,
    /// Part of it that computing hides.
    pub hidden: f64,
    /// Optimizer step.
    pub optimizer: f64,
    /// Idle time of a pipeline stage with the schedule 1F1B, and of its messages.
    pub bubble: f64,
    /// Time of exchanges on cores that ranks share, which nothing hides.
    pub on_cores: f64,
}

impl StepTime {
    /// Returns the times of a rank for `micro_batches` of `micro_batch` samples, and this bucket
    /// size.
    pub fn new(estimate: &Estimate<'_>, micro_batch: usize, micro_batches: usize, bucket: f64) -> Self {
        let Estimate { shape, hardware, parallel } = *estimate;
        let share = (parallel.tensor * parallel.pipeline * parallel.context) as f64;
        // Ranks that share a core take turns.
        let turns = 1.0 / hardware.cores_per_rank;
        let flops = (micro_batch * micro_batches) as f64 * shape.flops() / share;
        let rows = (micro_batch * shape.gpt.context) as f64 / parallel.context as f64;
        let computing = turns * flops / hardware.rate(rows);
        let exchanges = estimate.exchanges(micro_batch, micro_batches, bucket);
        let in_layers = exchanges.iter().filter(|exchange| exchange.kind.is_in_layers());
        let communication = estimate.data_exchanges(bucket, micro_batches);
        let communication = communication.map(|exchanges| Phase::new(&exchanges, hardware));
        // Recomputation runs forward once more.
        let again = if estimate.recomputes() { computing / 3.0 } else { 0.0 };
        let times = Self {
            forward: computing / 3.0,
            backward: computing * 2.0 / 3.0 + again,
            in_layers: in_layers.map(|exchange| exchange.link_time(hardware)).sum(),
            communication: communication.iter().map(|phase| phase.seconds).sum(),
            optimizer: turns * 2.0 * estimate.kept().iter().sum::<f64>() / hardware.memory_bandwidth,
            hidden: 0.0,
            bubble: 0.0,
            on_cores: exchanges.iter().map(|exchange| exchange.core_time(hardware)).sum(),
        };
        let times = Self { hidden: times.hidden(estimate, &communication, micro_batches), ..times };
        let transfer = estimate.stage_message(micro_batch).link_time(hardware);
        times.with_stages(parallel.pipeline, micro_batches, transfer, turns)
    }

    /// Returns the part of the communication in forward, backward and step that computing hides.
    fn hidden(&self, estimate: &Estimate<'_>, communication: &[Phase; 3], micro_batches: usize) -> f64 {
        let one = 1.0 / micro_batches as f64;
        let in_backward = if estimate.exchanges_each() { 1.0 } else { one };
        // The first micro-batch waits for weights that the step changed.
        let beside = [self.forward, in_backward * self.backward, one * self.forward];
        // An all-reduce counts as two collectives.
        let last = if estimate.parallel.kind.shards_state() { 1.0 } else { 2.0 };
        communication.iter().zip(beside).map(|(phase, beside)| phase.hidden(beside, last)).sum()
    }

    /// Adds the idle time of `stages` equal pipeline stages whose messages take `transfer`. Stages
    /// that share a core in `turns` fill each other's idle time.
    fn with_stages(self, stages: usize, micro_batches: usize, transfer: f64, turns: f64) -> Self {
        if stages == 1 {
            return self;
        }
        let share = 1.0 / (micro_batches as f64 * turns);
        let in_forward = self.in_layers * self.forward / self.working().max(f64::MIN_POSITIVE);
        let forward = (self.forward + in_forward) * share;
        let backward = (self.backward + self.in_layers - in_forward) * share;
        let costs = StageCosts::new([forward, backward / 2.0, backward / 2.0], 1, transfer);
        let busy = micro_batches as f64 * (forward + backward);
        let whole = makespan(stages, micro_batches, costs).unwrap_or(f64::INFINITY);
        let idle = whole - turns * busy;
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
    collectives: f64,
}

impl Phase {
    fn new(exchanges: &[Exchange], hardware: &Hardware) -> Self {
        Self {
            seconds: exchanges.iter().map(|exchange| exchange.link_time(hardware)).sum(),
            collectives: exchanges.iter().map(|exchange| exchange.collectives).sum(),
        }
    }

    /// Returns the seconds that computing hides which takes `beside`. The `last` collectives have
    /// nothing beside them: they reduce the gradients that backward computes last, or gather the
    /// weights that forward needs first.
    fn hidden(&self, beside: f64, last: f64) -> f64 {
        let others = 1.0 - last / self.collectives.max(last);
        beside.min(others * self.seconds)
    }
}

/// Returns the time of 1F1B on equal stages. Beyond three times as many micro-batches as stages,
/// each further one takes the same time.
fn makespan(stages: usize, micro_batches: usize, costs: StageCosts) -> Result<f64> {
    let order = Order::find("1f1b")?;
    let played = |micro_batches| {
        let schedule = order.schedule(stages, micro_batches, 1)?;
        Ok(play(&schedule, &vec![costs; stages])?.makespan)
    };
    let [some, more] = [2 * stages, 3 * stages];
    if micro_batches <= more {
        return played(micro_batches);
    }
    let (some, more) = (played(some)?, played(more)?);
    Ok(more + (more - some) * (micro_batches - 3 * stages) as f64 / stages as f64)
}
