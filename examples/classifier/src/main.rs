//! Trains two classifiers: `cargo run --release -p unisono-classifier`.
//!
//! A perceptron learns Fisher's 150 irises of three species on two ranks with ZeRO-2. A small
//! convolutional network learns the directions of bars in noisy images on four ranks with ZeRO-3.
//! Both are measured on samples that were held back.

use std::path::Path;
use unisono_classifier::{Classifier, Outcome, Result, Standardizer, Table, Training};
use unisono_classifier::{images_of_bars, on_ranks, train};
use unisono_parallel::data_parallel::ParallelKind;

fn main() -> Result<()> {
    report("irises", &irises()?)?;
    report("bars", &bars()?)
}

fn irises() -> Result<Outcome> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/iris.csv");
    let (mut training, mut held_back) = Table::read(&path)?.split(0.2, 1);
    let scaling = Standardizer::fit(&training);
    scaling.apply(&mut training);
    scaling.apply(&mut held_back);
    let settings = Training { strategy: ParallelKind::Zero2, batch: 24, steps: 150, lr: 0.01 };
    let sizes = [training.columns, 16, 16, training.classes()?];
    let mut ranks = on_ranks(2, |group| {
        train(group, |registry| Classifier::mlp(registry, &sizes), [&training, &held_back], settings)
    })?;
    Ok(ranks.remove(0))
}

fn bars() -> Result<Outcome> {
    const SIZE: usize = 8;
    let (training, held_back) = images_of_bars(750, SIZE, 1).split(0.2, 1);
    let settings = Training { strategy: ParallelKind::Zero3, batch: 40, steps: 150, lr: 0.005 };
    let classes = training.classes()?;
    let mut ranks = on_ranks(4, |group| {
        let make = |registry: &mut _| Classifier::conv_net(registry, 1, [SIZE; 2], &[8, 16], classes);
        train(group, make, [&training, &held_back], settings)
    })?;
    Ok(ranks.remove(0))
}

fn report(name: &str, outcome: &Outcome) -> Result<()> {
    let (first, last) = (outcome.losses[0], outcome.losses[outcome.losses.len() - 1]);
    let accuracy = 100.0 * outcome.accuracy;
    println!(
        "{name}: loss from {first:.3} to {last:.3}; {accuracy:.1} % of those held back are told rightly"
    );
    if outcome.accuracy > 0.9 { Ok(()) } else { Err("no more than 90 %".into()) }
}
