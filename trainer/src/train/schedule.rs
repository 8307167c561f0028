//! The learning rate as a function of the step.

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::f64::consts::PI;

/// How the learning rate falls once it is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shape {
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
pub enum Scale {
    /// Not at all.
    None,
    /// With its root, as the noise of gradients falls with it; for Adam and its kin.
    Sqrt,
    /// As it does, for plain gradient descent (Goyal et al., 2017).
    Linear,
}

impl Scale {
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
pub struct Schedule {
    /// Steps of the whole run.
    pub steps: u64,
    /// Steps before the learning rate is up.
    pub warmup: u64,
    /// How it falls.
    pub shape: Shape,
    /// Last steps over which it falls, for [`Shape::WarmupStableDecay`].
    pub decay: u64,
    /// What it falls to, as a share of the peak.
    pub floor: f64,
    /// How the peak grows with the global batch.
    pub lr_scale: Scale,
    /// Global batch that the configured peak is for.
    pub reference_batch: usize,
}

impl Default for Schedule {
    fn default() -> Self {
        Self {
            steps: 300,
            // With 20, attention of the first block forms at the full rate, and single steps have gradients of 12 to 100.
            warmup: 60,
            shape: Shape::Cosine,
            decay: 60,
            floor: 0.1,
            lr_scale: Scale::None,
            reference_batch: 8,
        }
    }
}

impl Schedule {
    /// Refuses a course that no run can take.
    ///
    /// # Errors
    /// [`Error::Illegal`] names the numbers.
    pub fn check(&self) -> Result<()> {
        let Self { steps, warmup, decay, floor, reference_batch, .. } = *self;
        let is_stable = self.shape == Shape::WarmupStableDecay;
        let falling = if is_stable { decay } else { 0 };
        if warmup.saturating_add(falling) > steps {
            let what = format!("schedule.warmup = {warmup} and schedule.decay = {falling}");
            return Err(Error::illegal(format!("{what} are more than schedule.steps = {steps}")));
        }
        if !(0.0..=1.0).contains(&floor) {
            return Err(Error::illegal(format!(
                "schedule.floor = {floor} is no share of the peak, from 0 to 1"
            )));
        }
        if reference_batch == 0 {
            return Err(Error::illegal("schedule.reference_batch = 0"));
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
            Shape::Constant => return 1.0,
            Shape::Cosine | Shape::Linear => self.warmup,
            Shape::WarmupStableDecay => self.steps.saturating_sub(self.decay),
        };
        let height = match self.shape {
            Shape::Cosine => 0.5 * (1.0 + (PI * self.fallen(step, falls_from)).cos()),
            _ => 1.0 - self.fallen(step, falls_from),
        };
        self.floor + (1.0 - self.floor) * height
    }

    /// How much of the way down is behind, from 0 to 1.
    fn fallen(&self, step: u64, from: u64) -> f64 {
        if step >= self.steps {
            return 1.0;
        }
        step.saturating_sub(from) as f64 / (self.steps - from) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(shape: Shape) -> Schedule {
        Schedule { steps: 100, warmup: 9, shape, decay: 20, floor: 0.1, ..Schedule::default() }
    }

    fn near(one: f64, two: f64) -> bool {
        (one - two).abs() < 1e-12
    }

    const FALLING: [Shape; 3] = [Shape::Cosine, Shape::Linear, Shape::WarmupStableDecay];

    #[test]
    fn corners_are_where_they_should_be() {
        for shape in FALLING {
            let factor = |step| schedule(shape).factor(step);
            assert!(near(factor(0), 0.1) && near(factor(4), 0.5) && near(factor(8), 0.9), "{shape:?}");
            assert!(near(factor(9), 1.0), "{shape:?} is up after its warm-up");
            assert!(factor(99) > 0.1 && near(factor(100), 0.1) && near(factor(u64::MAX), 0.1), "{shape:?}");
        }
        assert!(near(schedule(Shape::Constant).factor(1000), 1.0));
    }

    #[test]
    fn halfway_down_is_half_the_height() {
        let mut even = Schedule { warmup: 0, ..schedule(Shape::Cosine) };
        assert!(near(even.factor(50), 0.55) && near(even.factor(0), 1.0));
        assert!(near(even.factor(25), 0.1 + 0.9 * 0.5 * (1.0 + 0.5f64.sqrt())));
        even.shape = Shape::Linear;
        assert!(near(even.factor(50), 0.55) && near(even.factor(25), 0.775));
        even.shape = Shape::WarmupStableDecay;
        assert!(near(even.factor(80), 1.0) && near(even.factor(79), 1.0) && near(even.factor(90), 0.55));
    }

    #[test]
    fn it_rises_then_never_rises_again() {
        for shape in FALLING {
            let course: Vec<f64> = (0..120).map(|step| schedule(shape).factor(step)).collect();
            assert!(course[..10].is_sorted_by(|one, two| one < two), "{shape:?}");
            assert!(course[9..].is_sorted_by(|one, two| one >= two), "{shape:?}");
        }
    }

    #[test]
    fn runs_without_room_for_their_course_still_have_a_rate() {
        for shape in FALLING {
            let all_warmup = Schedule { steps: 10, warmup: 10, decay: 0, ..schedule(shape) };
            all_warmup.check().unwrap();
            assert!((0..30).all(|step| all_warmup.factor(step).is_finite()), "{shape:?}");
            let none = Schedule { steps: 0, warmup: 0, decay: 0, ..schedule(shape) };
            assert!(near(none.factor(0), 0.1));
        }
    }

    #[test]
    fn impossible_courses_are_refused() {
        let error = |schedule: Schedule| schedule.check().unwrap_err().to_string();
        let long = Schedule { warmup: 81, ..schedule(Shape::WarmupStableDecay) };
        assert_eq!(
            error(long.clone()),
            "schedule.warmup = 81 and schedule.decay = 20 are more than schedule.steps = 100"
        );
        Schedule { shape: Shape::Cosine, ..long }.check().unwrap();
        assert!(error(Schedule { floor: f64::NAN, ..Schedule::default() }).contains("no share of the peak"));
        assert!(error(Schedule { reference_batch: 0, ..Schedule::default() }).contains("reference_batch"));
    }

    #[test]
    fn rates_grow_with_the_batch_as_asked() {
        assert_eq!(
            [Scale::None, Scale::Sqrt, Scale::Linear].map(|scale| scale.factor(64, 16)),
            [1.0, 2.0, 4.0]
        );
        assert_eq!(
            [Scale::None, Scale::Sqrt, Scale::Linear].map(|scale| scale.factor(4, 16)),
            [1.0, 0.5, 0.25]
        );
    }
}
