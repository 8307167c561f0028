//! A run at one rank, and its steps.

use super::Batch;
use super::feed::{Feed, Owned};
use super::ledger::Ledger;
use super::network::Network;
use super::trace::{Lane, Trace, Traced};
use crate::config::Config;
use crate::data::{Chunk, Dataset, Sampler};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::flat::Ranks;
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
    /// The ranks that have chunks of the same sequences: a communicator for models alone, so that they need not wait for gradients;
    /// none where sequences are whole.
    pub(super) chunks: Option<Communicator>,
    /// The ranks that have parts of the same layers, as models reach them; none where layers are whole.
    pub(super) layers: Option<Ranks>,
    pub(super) batch: Batch,
    pub(super) feed: Feed,
    pub(super) data: Dataset,
    pub(super) sampler: Sampler,
    pub(super) seeding: Seeding,
    pub(super) network: Network,
    pub(super) inventory: Arc<Inventory>,
    pub(super) memory: Memory,
    /// The GPU that computes, if it is not the CPU.
    pub(super) device: Option<Device>,
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
    /// How long this rank waited meanwhile for the exchange of gradients and weights.
    pub exposed: Duration,
    /// How long it waited within layers that ranks share.
    pub in_layers: Duration,
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
        let (mut loss, in_layers) = self.gradients()?;
        self.trace.span(Lane::Communication, "gradients", || self.strategy.finish())?;
        self.ledger.count(&self.memory);
        let mut exposed = self.strategy.waited();
        exposed += self.mean(&mut loss)?;
        let norm = self.trace.span(Lane::Communication, "norm", || self.strategy.norm())?;
        // What went wrong within layers on GPUs is known by now, as the norm is.
        self.layers.as_ref().map_or(Ok(()), Ranks::check)?;
        self.check(loss, norm)?;
        let rate = self.update(norm)?;
        exposed += self.strategy.waited();
        Ok(Taken { step: self.step, loss, norm, rate, time: start.elapsed(), exposed, in_layers })
    }

    /// Adds up the gradients of this rank's part of the next batch; its mean loss, and how long layers waited for others.
    fn gradients(&mut self) -> Result<(f64, Duration)> {
        let numbers = self.sampler.draw();
        let Batch { micro, accumulation, breadth, .. } = self.batch;
        let (passes, mut losses, mut in_layers) = (self.batch.passes(), Vec::new(), Duration::ZERO);
        for (pass, numbers) in numbers.chunks(micro * breadth).enumerate() {
            self.strategy.begin(pass + 1 == passes)?;
            let (of_pass, waited) = self.pass(pass * breadth, numbers)?;
            losses.extend(of_pass);
            in_layers += waited;
        }
        Ok((losses.into_iter().map(f64::from).sum::<f64>() / accumulation as f64, in_layers))
    }

    /// One pass forward and back with the samples of micro-batch `first` and those that go breadth first with it; the loss of each,
    /// and how long layers waited for others.
    fn pass(&mut self, first: usize, numbers: &[u64]) -> Result<(Vec<f32>, Duration)> {
        let chunk = self.chunk();
        let read = || {
            let parts = numbers.chunks(self.batch.micro);
            parts.map(|numbers| self.feed.training.batch(numbers, chunk)).collect::<Result<Vec<_>>>()
        };
        let batches = self.trace.span(Lane::Compute, "data", read)?;
        let seeds = |at| self.seeding.pass(Phase::Training, self.step, (first + at) as u64);
        let seeds: Vec<_> = (0..batches.len()).map(seeds).collect();
        let mut strategy = Traced::new(&mut *self.strategy, &self.inventory, &mut self.trace);
        let mut pass = Pass::breadth_first(&mut strategy, &self.memory, &seeds, self.config.threads);
        pass.set_chunks(self.chunks.as_ref());
        pass.set_device(self.device.as_ref());
        let batches: Vec<_> = batches.iter().map(Owned::as_batch).collect();
        let losses = self.network.model().forward_each(&mut pass, &batches)?;
        let factor = self.config.strategy.average.loss_factor(self.groups.size(GroupKind::Data));
        self.network.model().backward(&mut pass, factor / self.batch.accumulation as f32)?;
        let waits = pass.waits();
        waits.iter().for_each(|wait| self.trace.wait(wait));
        Ok((losses, waits.iter().map(|wait| wait.time).sum()))
    }

    /// Which part of each sequence this rank has.
    pub(super) fn chunk(&self) -> Chunk {
        let (part, parts) = (self.groups.coordinates().sequence_data, self.config.mesh.sequence_data);
        Chunk { part, parts }
    }

    /// Lets weights follow gradients of this norm; the learning rate.
    fn update(&mut self, norm: f64) -> Result<f64> {
        let rate = self.config.peak_rate() * self.config.schedule.factor(self.step);
        let factor = clip_factor(norm, self.config.optimiser.clip);
        self.step += 1;
        let step = Step { number: self.step, rate: rate as f32, factor };
        self.trace.span(Lane::Compute, "optimiser", || self.strategy.update(&*self.optimiser, &step))?;
        self.device.iter().for_each(Device::forget_weights);
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
