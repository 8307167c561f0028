//! One step: gradients, their reduction, the norm, and the update of the weights.

use super::trace::{TraceTrack, TracedStrategy};
use crate::train::added_values::{AddedNames, AddedValues};
use crate::train::read_ahead::{BatchReader, ReadAhead, StepBatches};
use crate::train::run::Run;
use std::time::{Duration, Instant};
use unisono::{Avg, Communicator, Max, Sum};
use unisono_nn::device::Device;
use unisono_nn::error::{Error, Result};
use unisono_nn::model::{self, Model};
use unisono_nn::pass::{AddedSums, Pass, WaitKind};
use unisono_nn::process_group::ProcessGroup;
use unisono_parallel::context_parallel::SequenceChunk;
use unisono_parallel::mesh::{GroupKind, Phase};
use unisono_parallel::optimizer::{self, Step};
use unisono_parallel::pipeline::{self, Program};
use unisono_plan::BatchPlan;

/// Statistics of one step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepStats {
    /// Number of the step, from 1.
    pub step: u64,
    /// Mean loss of the samples of all ranks, before the step, with the losses that blocks added.
    pub loss: f64,
    /// Losses and metrics that blocks added.
    pub added: AddedValues,
    /// Norm of the gradient, before clipping.
    pub grad_norm: f64,
    /// Learning rate.
    pub lr: f64,
    /// Duration of the step.
    pub time: Duration,
    /// Time this rank waited for the exchange of gradients and weights.
    pub exposed: Duration,
    /// Time this rank waited in tensor parallel layers.
    pub tensor_parallel_wait: Duration,
    /// Time this rank waited for other pipeline stages.
    pub pipeline_wait: Duration,
    /// True on all ranks if any rank has a request to end the run.
    pub interrupted: bool,
    /// True on all ranks if any rank had a request to save a checkpoint.
    pub save_requested: bool,
}

impl Run {
    /// Takes one optimizer step.
    ///
    /// # Errors
    /// Fails if a collective or a file fails, or if the loss is not finite.
    pub fn step(&mut self) -> Result<StepStats> {
        let start = Instant::now();
        // Waits of validation or of a checkpoint before this step are not part of it.
        self.strategy.take_wait_time();
        let (own_loss, sums, [in_layers, for_stages]) = self.gradients()?;
        self.trace.span(TraceTrack::Communication, "gradients", || self.strategy.finish_backward())?;
        self.memory_report.update(&self.memory);
        let mut exposed = self.strategy.take_wait_time();
        let (loss, added, [interrupted, save_requested], waited) = self.all_reduce_loss(own_loss, &sums)?;
        exposed += waited;
        let norm = self.trace.span(TraceTrack::Communication, "norm", || self.strategy.grad_norm())?;
        // The norm is known, so GPU errors of tensor parallel layers are known too.
        self.tensor_group.as_ref().map_or(Ok(()), ProcessGroup::check)?;
        // All ranks have the same numbers, so all of them fail here, before a number that is not
        // finite reaches the weights.
        let grad_scale = self.grad_scale(loss, norm)?;
        let rate = self.update(grad_scale)?;
        self.memory_report.update_state(&self.memory);
        exposed += self.strategy.take_wait_time();
        self.trace.add_gpu_work()?;
        let time = start.elapsed();
        self.worked.add(time, exposed + in_layers + for_stages);
        Ok(StepStats {
            step: self.train_step,
            loss,
            added,
            grad_norm: norm,
            lr: rate,
            time,
            exposed,
            tensor_parallel_wait: in_layers,
            pipeline_wait: for_stages,
            interrupted,
            save_requested,
        })
    }

    /// Accumulates the gradients of this rank's part of the next batch. Returns its mean loss, the
    /// losses and metrics of blocks, and the waiting times in layers and for pipeline stages.
    fn gradients(&mut self) -> Result<(f64, AddedSums, [Duration; 2])> {
        let batches = self.next_batches()?;
        let seeds = |index| self.seeds.seeds_for(Phase::Training, self.train_step, index as u64);
        let seeds: Vec<_> = (0..batches.len()).map(seeds).collect();
        let factor = self.config.strategy.average.loss_factor(self.groups.size(GroupKind::Data));
        let scale = factor / self.batch.micro_count() as f32;
        let mut strategy = TracedStrategy::new(
            &mut *self.strategy,
            &self.inventory,
            &mut self.trace,
            self.device.as_ref().map(|device| device.compute().stream()),
        );
        let threads = self.config.threads;
        let mut pass = Pass::with_micro_batches(&mut strategy, &self.memory, &seeds, threads);
        self.config.context.share_sequences(&mut pass, self.sequence_group.as_ref());
        pass.set_device(self.device.as_ref());
        pass.set_micro_sequences(self.batch.micro_sequences);
        let model = &self.model;
        model::set_batches(model, &mut pass, batches)?;
        pass.begin_step(&self.program.plan)?;
        let stages = self.groups.get(GroupKind::Pipeline);
        let losses = run_program(model, &mut pass, &self.program, stages, scale)?;
        let (waits, sums) = (pass.waits().take(), pass.added_mut().take_sums());
        waits.iter().for_each(|wait| self.trace.add_wait(wait));
        let loss = losses.into_iter().map(f64::from).sum::<f64>() + sums.total;
        let total = |kind| waits.iter().filter(|wait| wait.kind == kind).map(|wait| wait.time).sum();
        let waits = [WaitKind::Layer, WaitKind::Stage].map(total);
        Ok((loss / self.batch.micro_count() as f64, sums, waits))
    }

    /// Reads this rank's micro-batches of the next step.
    fn next_batches(&mut self) -> Result<StepBatches> {
        let (chunk, workers) = (self.sequence_chunk(), self.config.data.workers);
        let (samples, BatchPlan { micro_batch, micro_sequences, .. }) =
            (self.loader.training.clone(), self.batch);
        let reader = BatchReader { samples, micro_batch, micro_sequences, chunk };
        // Threads start with the first step and not with the run, because a resumed checkpoint
        // moves the sampler before it.
        if workers > 0 && self.read_ahead.is_none() {
            self.read_ahead = Some(ReadAhead::start(workers, &reader, &self.sampler)?);
        }
        // The sampler advances in both cases: a checkpoint saves its position, and the threads have
        // a copy that is steps ahead.
        let (numbers, ahead) = (self.sampler.next_or_new_epoch(), &mut self.read_ahead);
        self.trace.span(TraceTrack::Compute, "data", || match ahead {
            Some(ahead) => ahead.next(),
            None => reader.read(&numbers),
        })
    }

    /// Returns this rank's chunk of each sequence.
    pub(super) fn sequence_chunk(&self) -> SequenceChunk {
        let (part, parts) = (self.groups.coordinates().sequence_data, self.config.mesh.sequence_data);
        let (placement, padding) = (self.config.context.placement, self.config.sequence_padding());
        SequenceChunk { placement, padding, ..SequenceChunk::new(part, parts) }
    }

    /// Updates the weights with gradients multiplied by `grad_scale`. Returns the learning rate.
    fn update(&mut self, grad_scale: f32) -> Result<f64> {
        let rate = self.config.peak_rate() * self.config.schedule.factor(self.train_step);
        self.train_step += 1;
        let step = Step { number: self.train_step, lr: rate as f32, grad_scale };
        self.trace.span(TraceTrack::Compute, "optimizer", || {
            self.strategy.optimizer_step(&*self.optimizer, &step)
        })?;
        // A GPU may have copies of weights that a strategy keeps on the host.
        self.device.iter().for_each(Device::invalidate_weights);
        Ok(rate)
    }

    /// Averages the loss, and what blocks have added, over all data ranks and adds up stages. Also
    /// returns the requests of any rank on all ranks, to end the run and to save a checkpoint, and
    /// the time of the exchange.
    fn all_reduce_loss(
        &mut self,
        loss: f64,
        sums: &AddedSums,
    ) -> Result<(f64, AddedValues, [bool; 2], Duration)> {
        let start = Instant::now();
        let is_new = f64::from(u8::from(self.added_names.lack(sums)));
        let requests = [self.interrupt.is_requested(), self.interrupt.take_save_request()];
        let [end, save] = requests.map(|requested| f64::from(u8::from(requested)));
        let numbers_of = |names: &AddedNames| names.numbers(sums, self.batch.micro_count());
        // Requests travel with the loss, so that they need no exchange of their own in each step.
        let mut numbers = [vec![loss, is_new, end, save], numbers_of(&self.added_names)].concat();
        self.all_reduce_means(&mut numbers)?;
        // Ranks with parts of the same layers have the same loss, but each its own requests.
        if let Some(tensor) = self.groups.get(GroupKind::Tensor) {
            tensor.all_reduce(&mut numbers[2..4], Max)?;
        }
        let mut added = numbers.split_off(4);
        // A name that is new on any rank moves the numbers behind it on all ranks. Names are
        // exchanged only then, because they seldom change.
        if numbers[1] > 0.0 {
            let groups = [GroupKind::Data, GroupKind::Pipeline].map(|kind| self.groups.get(kind));
            self.added_names.extend(sums, groups.into_iter().flatten())?;
            added = numbers_of(&self.added_names);
            self.all_reduce_means(&mut added)?;
        }
        let requests = [numbers[2] > 0.0, numbers[3] > 0.0];
        Ok((numbers[0], self.added_names.values(&added), requests, start.elapsed()))
    }

    /// Averages numbers over all data ranks, and adds them up over the stages of a pipeline.
    pub(super) fn all_reduce_means(&self, numbers: &mut [f64]) -> Result<()> {
        if let Some(group) = self.groups.get(GroupKind::Data) {
            group.all_reduce(numbers, Avg)?;
        }
        if let Some(stages) = self.groups.get(GroupKind::Pipeline) {
            // Only the last stage has a loss, and the others add zero.
            stages.all_reduce(numbers, Sum)?;
        }
        Ok(())
    }

    /// Returns the factor that clips a gradient of this norm. Rejects a loss or norm that is not
    /// finite. All ranks have the same numbers.
    fn grad_scale(&self, loss: f64, norm: f64) -> Result<f32> {
        let grad_scale = optimizer::grad_scale(norm, self.config.optimizer.max_grad_norm);
        grad_scale.filter(|_| loss.is_finite()).ok_or_else(|| {
            let what = format!("step {}: loss {loss}, norm of the gradient {norm}", self.train_step + 1);
            Error::invalid(format!(
                "{what}; a lower optimizer.lr, a longer schedule.warmup or optimizer.max_grad_norm may help"
            ))
        })
    }
}

/// Runs a program on the only stage, or on one of several `stages`.
pub(super) fn run_program(
    model: &dyn Model,
    pass: &mut Pass<'_>,
    program: &Program,
    stages: Option<&Communicator>,
    scale: f32,
) -> Result<Vec<f32>> {
    match stages {
        Some(stages) => pipeline::run_program(model, pass, program, stages, scale),
        None => model::run_plan(model, pass, &program.plan, scale),
    }
}
