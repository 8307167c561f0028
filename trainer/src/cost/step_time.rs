//! Time of a step.

use crate::cost::Estimate;
use serde::Serialize;

/// Seconds of the parts of a step on one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct StepTime {
    /// Forward.
    pub forward: f64,
    /// Backward: twice the forward.
    pub backward: f64,
    /// Communication.
    pub communication: f64,
    /// Optimizer step.
    pub optimizer: f64,
    /// Idle time of a pipeline stage with the schedule 1F1B.
    pub bubble: f64,
}

impl StepTime {
    /// Returns the times of a rank for its samples, micro-batch and bucket size. Excludes
    /// communication within layers and between stages.
    pub fn new(estimate: &Estimate<'_>, samples: usize, micro_batches: usize, bucket: f64) -> Self {
        let Estimate { shape, hardware, parallel } = *estimate;
        let share = (parallel.tensor * parallel.pipeline * parallel.context) as f64;
        let computing = samples as f64 * shape.flops() / share / hardware.flops;
        let sent: f64 = estimate.sent(micro_batches).iter().sum();
        let messages = (parallel.data - 1) as f64 * estimate.collectives(bucket, micro_batches);
        // Recomputation runs forward once more.
        let again = if estimate.recomputes() { computing / 3.0 } else { 0.0 };
        let (stages, working) = (parallel.pipeline as f64, computing + again);
        Self {
            forward: computing / 3.0,
            backward: computing * 2.0 / 3.0 + again,
            bubble: working * (stages - 1.0) / micro_batches as f64,
            communication: hardware.link(parallel.data, parallel.tensor).time(messages, sent),
            optimizer: 2.0 * estimate.kept().iter().sum::<f64>() / hardware.memory_bandwidth,
        }
    }

    /// Returns the time of a step with communication after backward.
    pub fn naive(&self) -> f64 {
        self.forward + self.backward + self.bubble + self.communication + self.optimizer
    }

    /// Returns the time of a step with communication during backward.
    pub fn overlapped(&self) -> f64 {
        self.forward + self.bubble + self.backward.max(self.communication) + self.optimizer
    }

    /// Returns the fraction of an overlapped step spent computing.
    pub fn utilization(&self) -> f64 {
        (self.forward + self.backward) / self.overlapped()
    }
}
