//! Learning rate schedule.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::f64::consts::PI;
use unisono_nn::error::{Error, Result};

/// Decay of the learning rate after warmup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LrShape {
    /// No decay.
    Constant,
    /// Half a cosine wave (Loshchilov, Hutter, "SGDR", ICLR 2017).
    Cosine,
    /// Linear decay.
    Linear,
    /// Constant, then linear decay in the last steps (Hu et al., "MiniCPM", 2024).
    WarmupStableDecay,
}

/// Scaling of the learning rate with the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LrScaling {
    /// No scaling.
    None,
    /// Scales with the square root of the batch, as gradient noise falls with it. For Adam and its
    /// variants.
    Sqrt,
    /// Scales linearly with the batch, for SGD (Goyal et al., 2017).
    Linear,
}

impl LrScaling {
    /// Returns the factor of the learning rate for batches of `batch` samples, relative to batches
    /// of `reference`.
    pub fn factor(self, batch: usize, reference: usize) -> f64 {
        let growth = batch as f64 / reference as f64;
        match self {
            Self::None => 1.0,
            Self::Sqrt => growth.sqrt(),
            Self::Linear => growth,
        }
    }
}

/// Linear warmup, followed by decay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct LrSchedule {
    /// Number of steps of the run.
    pub steps: u64,
    /// Number of warmup steps.
    pub warmup: u64,
    /// Shape of the decay.
    pub shape: LrShape,
    /// Number of decay steps at the end, for the shape `warmup-stable-decay`.
    pub decay: u64,
    /// Final learning rate as a fraction of the peak.
    pub floor: f64,
    /// Scaling of the peak with the global batch.
    pub lr_scale: LrScaling,
    /// Global batch for which the peak is configured.
    pub reference_batch: usize,
}

impl Default for LrSchedule {
    fn default() -> Self {
        Self {
            steps: 300,
            // A shorter warmup makes single steps with long gradients (docs/notebook/trainer.md).
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
    /// Checks that the schedule is possible.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the numbers.
    pub fn check(&self) -> Result<()> {
        let Self { steps, warmup, decay, floor, reference_batch, .. } = *self;
        let is_stable = self.shape == LrShape::WarmupStableDecay;
        let falling = if is_stable { decay } else { 0 };
        if warmup.saturating_add(falling) > steps {
            let what = format!("schedule.warmup = {warmup} and schedule.decay = {falling}");
            let fitting = if falling > 0 { format!(" schedule.decay={}", steps / 5) } else { String::new() };
            return Err(Error::invalid(format!(
                "{what} are more than schedule.steps = {steps}; usual is schedule.warmup={}{fitting}",
                steps / 10
            )));
        }
        if !(0.0..=1.0).contains(&floor) {
            return Err(Error::invalid(format!(
                "schedule.floor = {floor} is not a fraction of the peak, from 0 to 1"
            )));
        }
        if reference_batch == 0 {
            return Err(Error::invalid("schedule.reference_batch = 0"));
        }
        Ok(())
    }

    /// Returns the learning rate at `step`, from 0, as a fraction of the peak.
    ///
    /// The result is positive at step 0, 1 at step `warmup`, and the floor at step `steps`, which
    /// is the first step after the run.
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

    /// Returns the progress of the decay, from 0 to 1.
    fn decay_factor(&self, step: u64, start: u64) -> f64 {
        // A decay may begin where the run ends, and would be divided by its length of 0.
        if step >= self.steps {
            return 1.0;
        }
        step.saturating_sub(start) as f64 / (self.steps - start) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(shape: LrShape) -> LrSchedule {
        LrSchedule { steps: 100, warmup: 9, shape, decay: 20, floor: 0.1, ..LrSchedule::default() }
    }

    fn near(first: f64, second: f64) -> bool {
        (first - second).abs() < 1e-12
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
            assert!(course[..10].is_sorted_by(|first, second| first < second), "{shape:?}");
            assert!(course[9..].is_sorted_by(|first, second| first >= second), "{shape:?}");
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
            "schedule.warmup = 81 and schedule.decay = 20 are more than schedule.steps = 100; usual is \
             schedule.warmup=10 schedule.decay=20"
        );
        LrSchedule { shape: LrShape::Cosine, ..long }.check().unwrap();
        assert!(
            error(LrSchedule { floor: f64::NAN, ..LrSchedule::default() })
                .contains("not a fraction of the peak")
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
