//! A run at one rank, and its steps.

use super::Batch;
use super::feed::Feed;
use super::ledger::Ledger;
use super::network::Network;
use super::trace::{Lane, Trace, Traced};
use crate::config::Config;
use crate::data::Sampler;
use crate::error::{Error, Result};
use crate::memory::Memory;
use crate::mesh::{GroupKind, Groups, Phase, Seeding};
use crate::optim::{Optimiser, Step};
use crate::parallel::Parallel;
use crate::parameter::Inventory;
use crate::pass::Pass;
use std::sync::Arc;
use std::time::{Duration, Instant};
use unisono::{Avg, Communicator};
use unisono_cuda::clip_factor;

/// What one rank has of a run. All ranks call the same methods in the same order.
pub struct Run {
    pub(super) config: Config,
    pub(super) world: Communicator,
    pub(super) groups: Groups,
    pub(super) batch: Batch,
    pub(super) feed: Feed,
    pub(super) sampler: Sampler,
    pub(super) seeding: Seeding,
    pub(super) network: Network,
    pub(super) inventory: Arc<Inventory>,
    pub(super) memory: Memory,
    pub(super) strategy: Box<dyn Parallel>,
    pub(super) optimiser: Box<dyn Optimiser>,
    /// Steps taken.
    pub(super) step: u64,
    pub(super) ledger: Ledger,
    pub(super) trace: Trace,
}

/// What one step was like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Taken {
    /// Its number, from 1.
    pub step: u64,
    /// Mean loss of all samples of all ranks, before the step.
    pub loss: f64,
    /// Norm of the gradient, before clipping.
    pub norm: f64,
    /// Learning rate.
    pub rate: f64,
    /// How long it took.
    pub time: Duration,
    /// How long this rank waited for communication meanwhile.
    pub exposed: Duration,
}

impl Run {
    /// Whether this rank speaks for all.
    pub fn speaks(&self) -> bool {
        self.world.rank() == 0
    }

    /// Steps taken.
    pub fn steps(&self) -> u64 {
        self.step
    }

    /// What this rank kept in memory in the last step.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Takes one step of the optimiser.
    ///
    /// # Errors
    /// Of collectives and files; if there is no longer a number to minimise.
    pub fn step(&mut self) -> Result<Taken> {
        let start = Instant::now();
        self.strategy.waited();
        let mut loss = self.gradients()?;
        self.trace.span(Lane::Communication, "gradients", || self.strategy.finish())?;
        self.ledger.count(&self.memory);
        let mut exposed = self.strategy.waited();
        exposed += self.mean(&mut loss)?;
        let norm = self.trace.span(Lane::Communication, "norm", || self.strategy.norm())?;
        self.check(loss, norm)?;
        let rate = self.update(norm)?;
        exposed += self.strategy.waited();
        Ok(Taken { step: self.step, loss, norm, rate, time: start.elapsed(), exposed })
    }

    /// Adds up the gradients of this rank's part of the next batch; its mean loss.
    fn gradients(&mut self) -> Result<f64> {
        let numbers = self.sampler.draw();
        let (parts, mut sum) = (self.batch.accumulation, 0.0);
        for (part, numbers) in numbers.chunks(self.batch.micro).enumerate() {
            let batch = self.trace.span(Lane::Compute, "data", || self.feed.training.batch(numbers))?;
            self.strategy.begin(part + 1 == parts)?;
            let seeds = self.seeding.pass(Phase::Training, self.step, part as u64);
            let mut strategy = Traced::new(&mut *self.strategy, &self.inventory, &mut self.trace);
            let mut pass = Pass::new(&mut strategy, &self.memory, seeds, self.config.threads);
            sum += f64::from(self.network.model().forward(&mut pass, &batch.as_batch())?);
            self.network.model().backward(&mut pass, 1.0 / parts as f32)?;
        }
        Ok(sum / parts as f64)
    }

    /// Lets weights follow gradients of this norm; the learning rate.
    fn update(&mut self, norm: f64) -> Result<f64> {
        let rate = self.config.peak_rate() * self.config.schedule.factor(self.step);
        let factor = clip_factor(norm, self.config.optimiser.clip);
        self.step += 1;
        let step = Step { number: self.step, rate: rate as f32, factor };
        self.trace.span(Lane::Compute, "optimiser", || self.strategy.update(&*self.optimiser, &step))?;
        Ok(rate)
    }

    /// Makes a number the mean of all data ranks'; how long that took.
    pub(super) fn mean(&self, value: &mut f64) -> Result<Duration> {
        let start = Instant::now();
        if let Some(group) = self.groups.get(GroupKind::Data) {
            group.all_reduce(std::slice::from_mut(value), Avg)?;
        }
        Ok(start.elapsed())
    }

    /// Refuses to go on with numbers that are none; all ranks see the same ones.
    fn check(&self, loss: f64, norm: f64) -> Result<()> {
        if loss.is_finite() && norm.is_finite() {
            return Ok(());
        }
        let what = format!("step {}: loss {loss}, norm of the gradient {norm}", self.step + 1);
        Err(Error::illegal(format!(
            "{what}; a lower optimiser.lr, a longer schedule.warmup or optimiser.clip may help"
        )))
    }
}
