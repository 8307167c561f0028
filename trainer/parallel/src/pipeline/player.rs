//! Plays a schedule with the times of its passes and messages: a prediction of the time of a step.

use crate::pipeline::check::{Holdings, check};
use crate::pipeline::{Op, Payload, Schedule};
use std::collections::HashMap;
use unisono_nn::error::{Error, Result};

/// Times of one stage, in any unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StageCosts {
    /// Time of a forward pass.
    pub forward: f64,
    /// Time of the gradient of the input.
    pub backward_input: f64,
    /// Time of the gradients of the weights.
    pub backward_weights: f64,
    /// Time of a message from this stage to another rank. A link moves one message at a time.
    pub transfer: f64,
}

/// Operation in time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// The operation.
    pub op: Op,
    /// Time at which the rank comes to it.
    pub start: f64,
    /// Time at which the rank goes on. A receive ends with the arrival.
    pub end: f64,
}

/// Schedule in time.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline {
    /// Operations of each rank, in order.
    pub rows: Vec<Vec<Span>>,
    /// Time at which the last rank ends.
    pub makespan: f64,
    /// Most that each rank holds.
    pub holdings: Holdings,
}

/// Returns the times of all operations, if stage `s` takes `costs[s]`. A send takes no time of its
/// rank and never waits.
///
/// # Errors
/// Fails for a schedule that [`check`] rejects, and for costs that are no times of its stages.
pub fn play(schedule: &Schedule, costs: &[StageCosts]) -> Result<Timeline> {
    // The loop below ends only for a schedule in which no rank waits forever.
    let holdings = check(schedule)?;
    let valid = |costs: &StageCosts| {
        let &StageCosts { forward, backward_input, backward_weights, transfer } = costs;
        // The range also excludes NaN and infinity.
        [forward, backward_input, backward_weights, transfer].iter().all(|time| (0.0..1e15).contains(time))
    };
    if costs.len() != schedule.stages() || !costs.iter().all(valid) {
        let stages = schedule.stages();
        return Err(Error::invalid(format!("costs are 4 times from 0 for each of {stages} pipeline stages")));
    }
    let mut clock = Clock { schedule, costs, arrivals: HashMap::new(), free: HashMap::new() };
    let mut rows: Vec<Vec<Span>> = vec![Vec::new(); schedule.ranks];
    while rows.iter().zip(&schedule.rows).any(|(row, ops)| row.len() < ops.len()) {
        for rank in schedule.rounds() {
            let row = &mut rows[rank];
            while let Some(&op) = schedule.rows[rank].get(row.len()) {
                let start = row.last().map_or(0.0, |span| span.end);
                // The message is sent by another rank, perhaps in a later round, so this rank is
                // left until then.
                let Some(end) = clock.end(rank, op, start) else { break };
                row.push(Span { op, start, end });
            }
        }
    }
    let ends = rows.iter().filter_map(|row| row.last()).map(|span| span.end);
    Ok(Timeline { makespan: ends.fold(0.0, f64::max), rows, holdings })
}

struct Clock<'s> {
    schedule: &'s Schedule,
    costs: &'s [StageCosts],
    /// Arrival of each message, by payload, micro-batch and receiving stage.
    arrivals: HashMap<(Payload, usize, usize), f64>,
    /// Time from which a link moves the next message, by sender, receiver and payload.
    free: HashMap<(usize, usize, Payload), f64>,
}

impl Clock<'_> {
    /// Returns the end of an operation, or `None` for a message that has not been sent yet.
    fn end(&mut self, rank: usize, op: Op, start: f64) -> Option<f64> {
        let Some((micro, chunk)) = op.place() else { return Some(start) };
        let stage = self.schedule.stage(rank, chunk);
        match op {
            Op::Send { what, peer, .. } => {
                let free = self.free.entry((rank, peer, what)).or_insert(0.0);
                *free = start.max(*free) + self.costs[stage].transfer;
                let target_stage = if what == Payload::Activation { stage + 1 } else { stage - 1 };
                self.arrivals.insert((what, micro, target_stage), *free);
                Some(start)
            }
            Op::Receive { what, .. } => {
                self.arrivals.get(&(what, micro, stage)).map(|&arrival| start.max(arrival))
            }
            _ => Some(start + self.costs[stage].of(op)),
        }
    }
}

impl StageCosts {
    /// Returns the costs of one of `chunks` equal stages of a rank that takes `times` for forward,
    /// the gradient of the input and the gradients of the weights of all.
    pub fn new(times: [f64; 3], chunks: usize, transfer: f64) -> Self {
        let [forward, backward_input, backward_weights] = times.map(|time| time / chunks as f64);
        Self { forward, backward_input, backward_weights, transfer }
    }

    /// Returns the time of a pass, and 0 for other operations.
    pub fn of(&self, op: Op) -> f64 {
        match op {
            Op::Forward { .. } => self.forward,
            Op::Backward { .. } => self.backward_input + self.backward_weights,
            Op::BackwardInput { .. } => self.backward_input,
            Op::BackwardWeights { .. } => self.backward_weights,
            Op::Send { .. } | Op::Receive { .. } | Op::Step => 0.0,
        }
    }
}

impl Timeline {
    /// Returns the share of the makespan in which `rank` runs no pass.
    pub fn idle(&self, rank: usize) -> f64 {
        let passes = self.rows[rank].iter().filter(|span| span.op.computes());
        let busy: f64 = passes.map(|span| span.end - span.start).sum();
        if self.makespan > 0.0 { 1.0 - busy / self.makespan } else { 0.0 }
    }

    /// Returns the mean idle share of the ranks: the bubble.
    pub fn bubble(&self) -> f64 {
        (0..self.rows.len()).map(|rank| self.idle(rank)).sum::<f64>() / self.rows.len() as f64
    }
}
