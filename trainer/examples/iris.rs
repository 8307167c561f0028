//! Trains a perceptron to classify irises on two ranks: `cargo run --release -p unisono-trainer
//! --example iris`.
//!
//! The data is Fisher's 150 flowers of three species, with 30 for validation. The example prints
//! the accuracy on the validation data.

mod common;

use common::{Result, on_ranks};
use std::path::Path;
use std::sync::Arc;
use unisono::Communicator;
use unisono_trainer::allocator::Allocator;
use unisono_trainer::data::{LastBatch, Sampler, Standardizer, Table};
use unisono_trainer::models::{Batch, Classifier, Model};
use unisono_trainer::optim::{AdamW, Step};
use unisono_trainer::parallel::{DataParallel, ParallelKind, ProcessGroups, Settings, new_strategy};
use unisono_trainer::parameter::Registry;
use unisono_trainer::pass::{Pass, Seeds};
use unisono_trainer::strategy::StepPlan;

const BATCH: u64 = 24;
const STEPS: u64 = 150;

fn main() -> Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/iris.csv");
    let (mut training, mut held_back) = Table::read(&path)?.split(0.2, 1);
    let scaling = Standardizer::fit(&training);
    scaling.apply(&mut training);
    scaling.apply(&mut held_back);
    let ranks = Communicator::local(2)?;
    let outcomes = on_ranks(ranks, |group| train(group, &training, &held_back))?;
    let (loss, right) = outcomes[0];
    println!("loss {loss:.3}; of {} held back, {:.1} % are told rightly", held_back.rows(), 100.0 * right);
    if right > 0.9 { Ok(()) } else { Err("no more than 90 %".into()) }
}

/// Returns the last loss, and the accuracy on the validation data.
fn train(group: Communicator, training: &Table, held_back: &Table) -> Result<(f32, f64)> {
    let (mut registry, memory) = (Registry::default(), Allocator::default());
    let model = Classifier::mlp(&mut registry, &[training.columns, 16, 16, 3]);
    let inventory = Arc::new(registry.finish());
    let sampler = Sampler::new(training.rows() as u64, BATCH, Some(1), LastBatch::Drop)?;
    let mut sampler = sampler.with_shard(group.rank(), group.size())?;
    let team = ProcessGroups::data_only(Some(group));
    let mut strategy = new_strategy(ParallelKind::Zero2, &inventory, team, &Settings::default(), &memory)?;
    let mut loss = 0.0;
    for number in 1..=STEPS {
        let samples = training.select(&sampler.next_or_new_epoch());
        let labels = labels(&samples);
        let batch = Batch::Samples { features: &samples.features, labels: &labels };
        strategy.begin_step(&StepPlan::depth_first(model.block_count(), 1))?;
        let mut pass = Pass::new(&mut *strategy, &memory, Seeds::default(), 1);
        loss = model.forward(&mut pass, &batch)?;
        model.backward(&mut pass, 1.0)?;
        strategy.finish_backward()?;
        strategy.optimizer_step(&AdamW::default(), &Step { number, lr: 0.01, grad_scale: 1.0 })?;
    }
    Ok((loss, accuracy(&mut *strategy, &model, &memory, held_back)?))
}

fn labels(table: &Table) -> Vec<u32> {
    table.targets.iter().map(|class| *class as u32).collect()
}

fn accuracy(
    strategy: &mut dyn DataParallel,
    model: &Classifier,
    memory: &Allocator,
    table: &Table,
) -> Result<f64> {
    let mut pass = Pass::new(strategy, memory, Seeds::default(), 1);
    let logits = pass.no_grad(|pass| model.logits(pass, &table.features))?;
    let guess = |row: usize| {
        let scores = logits.row(row).iter().enumerate();
        scores.max_by(|one, other| one.1.total_cmp(other.1)).map(|(class, _)| class as u32)
    };
    let labels = labels(table);
    let right = (0..labels.len()).filter(|&row| guess(row) == Some(labels[row])).count();
    Ok(right as f64 / labels.len() as f64)
}
