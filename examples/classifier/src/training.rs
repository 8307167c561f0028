//! Steps of a model of one's own on any number of ranks.

use crate::{Classifier, Samples, Table};
use std::sync::Arc;
use unisono::{Avg, Communicator};
use unisono_nn::allocator::Allocator;
use unisono_nn::batch::Batch;
use unisono_nn::model::Model;
use unisono_nn::parameter::Registry;
use unisono_nn::pass::{Pass, Seeds};
use unisono_nn::step_plan::StepPlan;
use unisono_parallel::data_parallel::{DataParallel, ParallelKind, ProcessGroups, Settings, new_strategy};
use unisono_parallel::optimizer::{AdamW, Step};
use unisono_trainer::data::{LastBatch, Sampler};

/// Result with errors of any kind, also from other threads.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Settings of a training.
#[derive(Clone, Copy, Debug)]
pub struct Training {
    /// Distribution of state over the ranks.
    pub strategy: ParallelKind,
    /// Samples per step, over all ranks.
    pub batch: u64,
    /// Number of steps.
    pub steps: u64,
    /// Learning rate.
    pub lr: f32,
}

/// Result of a training, equal on all ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Mean loss of each step.
    pub losses: Vec<f32>,
    /// Mean loss of the samples held back.
    pub validation: f32,
    /// Fraction of the samples held back that are classified correctly.
    pub accuracy: f64,
}

/// Trains the model that `make` creates on this rank's shards of the batches of `training`.
/// Measures it on `held_back`.
///
/// # Errors
/// Fails if there are fewer samples than a batch has, or a collective fails.
pub fn train(
    group: &Communicator,
    make: impl FnOnce(&mut Registry) -> Classifier,
    [training, held_back]: [&Table; 2],
    settings: Training,
) -> Result<Outcome> {
    let (mut registry, memory) = (Registry::default(), Allocator::default());
    let model = make(&mut registry);
    let inventory = Arc::new(registry.finish());
    let sampler = Sampler::new(training.rows() as u64, settings.batch, Some(1), LastBatch::Drop)?;
    let mut sampler = sampler.with_shard(group.rank(), group.size())?;
    let team = ProcessGroups::data_only(Some(group.clone()));
    let mut strategy = new_strategy(settings.strategy, &inventory, team, &Settings::default(), &memory)?;
    let mut losses = Vec::new();
    for number in 1..=settings.steps {
        let batch = Batch::new(training.select(&sampler.next_or_new_epoch()).samples());
        strategy.begin_step(&StepPlan::depth_first(model.block_count(), 1))?;
        let mut pass = Pass::new(&mut *strategy, &memory, Seeds::default(), 1);
        let mut loss = [model.forward(&mut pass, &batch)?];
        model.backward(&mut pass, 1.0)?;
        strategy.finish_backward()?;
        let step = Step { number, lr: settings.lr, grad_scale: 1.0 };
        strategy.optimizer_step(&AdamW::default(), &step)?;
        group.all_reduce(&mut loss, Avg)?;
        losses.push(loss[0]);
    }
    let [validation, accuracy] = measure(&mut *strategy, &model, &memory, held_back.samples())?;
    Ok(Outcome { losses, validation: validation as f32, accuracy })
}

/// Returns the mean loss, and the fraction of samples that are classified correctly.
fn measure(
    strategy: &mut dyn DataParallel,
    model: &Classifier,
    memory: &Allocator,
    samples: Samples,
) -> Result<[f64; 2]> {
    let labels = samples.labels.clone();
    let batch = Batch::new(samples);
    let mut pass = Pass::new(strategy, memory, Seeds::default(), 1);
    let guesses = pass.no_grad(|pass| model.guesses(pass, &batch))?;
    let loss = pass.no_grad(|pass| model.forward(pass, &batch))?;
    let right = guesses.iter().zip(&labels).filter(|(guess, label)| guess == label).count();
    Ok([f64::from(loss), right as f64 / labels.len() as f64])
}

/// Runs `body` on `count` ranks, which are threads. Returns all results.
///
/// # Errors
/// Returns the first error of a rank.
///
/// # Panics
/// Panics if a rank panics.
pub fn on_ranks<R: Send>(count: usize, body: impl Fn(&Communicator) -> Result<R> + Sync) -> Result<Vec<R>> {
    let ranks = Communicator::local(count)?;
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks.iter().map(|rank| scope.spawn(|| body(rank))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    })
}
