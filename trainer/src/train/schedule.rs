//! The learning rate as a function of the step.

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::f64::consts::PI;

/// How the learning rate falls once it is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LrShape {
    /// It does not.
    Constant,
    /// Half a wave of a cosine (Loshchilov, Hutter, SGDR, ICLR 2017).
    Cosine,
    /// A straight line.
    Linear,
    /// Constant, then a straight line over the last steps (Hu et al., MiniCPM, 2024).
    WarmupStableDecay,
}

/// How the learning rate grows with the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LrScaling {
    /// Not at all.
    None,
    /// With its root, as the noise of gradients falls with it; for Adam and its kin.
    Sqrt,
    /// As it does, for plain gradient descent (Goyal et al., 2017).
    Linear,
}

impl LrScaling {
    /// What the learning rate for batches of `reference` samples is multiplied by for batches of `batch`.
    pub fn factor(self, batch: usize, reference: usize) -> f64 {
        let growth = batch as f64 / reference as f64;
        match self {
            Self::None => 1.0,
            Self::Sqrt => growth.sqrt(),
            Self::Linear => growth,
        }
    }
}

/// Up in a straight line, down in a shape.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LrSchedule {
    /// Steps of the whole run.
    pub steps: u64,
    /// Steps before the learning rate is up.
    pub warmup: u64,
    /// How it falls.
    pub shape: LrShape,
    /// Last steps over which it falls, for [`Shape::WarmupStableDecay`].
    pub decay: u64,
    /// What it falls to, as a share of the peak.
    pub floor: f64,
    /// How the peak grows with the global batch.
    pub lr_scale: LrScaling,
    /// Global batch that the configured peak is for.
    pub reference_batch: usize,
}

impl Default for LrSchedule {
    fn default() -> Self {
        Self {
            steps: 300,
            // With 20, attention of the first block forms at the full rate, and single steps have gradients of 12 to 100.
            warmup: 60,
            shape: LrShape::Cosine,
            decay: 60,
            floor: 0.1,
            lr_scale: LrScaling::None,
            reference_batch: 8,
        }
    }
}

impl LrSchedule {
    /// Refuses a course that no run can take.
    ///
    /// # Errors
    /// [`Error::Illegal`] names the numbers.
    pub fn check(&self) -> Result<()> {
        let Self { steps, warmup, decay, floor, reference_batch, .. } = *self;
        let is_stable = self.shape == LrShape::WarmupStableDecay;
        let falling = if is_stable { decay } else { 0 };
        if warmup.saturating_add(falling) > steps {
            let what = format!("schedule.warmup = {warmup} and schedule.decay = {falling}");
            return Err(Error::invalid(format!("{what} are more than schedule.steps = {steps}")));
        }
        if !(0.0..=1.0).contains(&floor) {
            return Err(Error::invalid(format!(
                "schedule.floor = {floor} is no share of the peak, from 0 to 1"
            )));
        }
        if reference_batch == 0 {
            return Err(Error::invalid("schedule.reference_batch = 0"));
        }
        Ok(())
    }

    /// The learning rate at `step`, counted from 0, as a share of the peak.
    ///
    /// It is never zero at the first step, is 1 at step `warmup` and the floor at step `steps`: the first that is not
    /// made.
    pub fn factor(&self, step: u64) -> f64 {
        if step < self.warmup {
            return (step + 1) as f64 / (self.warmup + 1) as f64;
        }
        let falls_from = match self.shape {
            LrShape::Constant => return 1.0,
            LrShape::Cosine | LrShape::Linear => self.warmup,
            LrShape::WarmupStableDecay => self.steps.saturating_sub(self.decay),
        };
        let height = match self.shape {
            LrShape::Cosine => 0.5 * (1.0 + (PI * self.decay_factor(step, falls_from)).cos()),
            _ => 1.0 - self.decay_factor(step, falls_from),
        };
        self.floor + (1.0 - self.floor) * height
    }

    /// How much of the way down is behind, from 0 to 1.
    fn decay_factor(&self, step: u64, from: u64) -> f64 {
        if step >= self.steps {
            return 1.0;
        }
        step.saturating_sub(from) as f64 / (self.steps - from) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(shape: LrShape) -> LrSchedule {
        LrSchedule { steps: 100, warmup: 9, shape, decay: 20, floor: 0.1, ..LrSchedule::default() }
    }

    fn near(one: f64, two: f64) -> bool {
        (one - two).abs() < 1e-12
    }

    const FALLING: [LrShape; 3] = [LrShape::Cosine, LrShape::Linear, LrShape::WarmupStableDecay];

    #[test]
    fn schedule_hits_its_corner_points() {
        for shape in FALLING {
            let factor = |step| schedule(shape).factor(step);
            assert!(near(factor(0), 0.1) && near(factor(4), 0.5) && near(factor(8), 0.9), "{shape:?}");
            assert!(near(factor(9), 1.0), "{shape:?} is up after its warm-up");
            assert!(factor(99) > 0.1 && near(factor(100), 0.1) && near(factor(u64::MAX), 0.1), "{shape:?}");
        }
        assert!(near(schedule(LrShape::Constant).factor(1000), 1.0));
    }

    #[test]
    fn schedule_is_half_at_midpoint() {
        let mut even = LrSchedule { warmup: 0, ..schedule(LrShape::Cosine) };
        assert!(near(even.factor(50), 0.55) && near(even.factor(0), 1.0));
        assert!(near(even.factor(25), 0.1 + 0.9 * 0.5 * (1.0 + 0.5f64.sqrt())));
        even.shape = LrShape::Linear;
        assert!(near(even.factor(50), 0.55) && near(even.factor(25), 0.775));
        even.shape = LrShape::WarmupStableDecay;
        assert!(near(even.factor(80), 1.0) && near(even.factor(79), 1.0) && near(even.factor(90), 0.55));
    }

    #[test]
    fn schedule_rises_once() {
        for shape in FALLING {
            let course: Vec<f64> = (0..120).map(|step| schedule(shape).factor(step)).collect();
            assert!(course[..10].is_sorted_by(|one, two| one < two), "{shape:?}");
            assert!(course[9..].is_sorted_by(|one, two| one >= two), "{shape:?}");
        }
    }

    #[test]
    fn short_runs_still_have_a_rate() {
        for shape in FALLING {
            let all_warmup = LrSchedule { steps: 10, warmup: 10, decay: 0, ..schedule(shape) };
            all_warmup.check().unwrap();
            assert!((0..30).all(|step| all_warmup.factor(step).is_finite()), "{shape:?}");
            let none = LrSchedule { steps: 0, warmup: 0, decay: 0, ..schedule(shape) };
            assert!(near(none.factor(0), 0.1));
        }
    }

    #[test]
    fn invalid_schedules_are_rejected() {
        let error = |schedule: LrSchedule| schedule.check().unwrap_err().to_string();
        let long = LrSchedule { warmup: 81, ..schedule(LrShape::WarmupStableDecay) };
        assert_eq!(
            error(long.clone()),
            "schedule.warmup = 81 and schedule.decay = 20 are more than schedule.steps = 100"
        );
        LrSchedule { shape: LrShape::Cosine, ..long }.check().unwrap();
        assert!(
            error(LrSchedule { floor: f64::NAN, ..LrSchedule::default() }).contains("no share of the peak")
        );
        assert!(
            error(LrSchedule { reference_batch: 0, ..LrSchedule::default() }).contains("reference_batch")
        );
    }

    #[test]
    fn lr_scales_with_batch() {
        assert_eq!(
            [LrScaling::None, LrScaling::Sqrt, LrScaling::Linear].map(|scale| scale.factor(64, 16)),
            [1.0, 2.0, 4.0]
        );
        assert_eq!(
            [LrScaling::None, LrScaling::Sqrt, LrScaling::Linear].map(|scale| scale.factor(4, 16)),
            [1.0, 0.5, 0.25]
        );
    }
}
