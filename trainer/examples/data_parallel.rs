//! Compares three ways of data parallelism: `cargo run --release -p unisono-trainer --example
//! data_parallel`.
//!
//! Two ranks train the same GPT on halves of the same batches, over slow links. *Naive* reduces
//! each gradient after backward, *overlapped* reduces each as soon as it is ready, and *bucketed*
//! reduces many in one message. Losses and weights are bitwise equal; only the time differs.

mod common;

use common::{Result, agreed_weights, median, on_ranks, slow};
use std::sync::Arc;
use std::time::Instant;
use unisono::{Avg, Communicator, Config, ReductionOrder};
use unisono_trainer::allocator::Allocator;
use unisono_trainer::models::{Batch, Gpt, GptConfig, Model};
use unisono_trainer::optim::{AdamW, Step};
use unisono_trainer::parallel::{DataParallel, GradReduction, ProcessGroups, Replicated, Settings};
use unisono_trainer::parameter::Registry;
use unisono_trainer::pass::{Pass, Seeds};
use unisono_trainer::strategy::{StepPlan, Strategy};
use unisono_trainer::tensor_parallel::TensorParallel;

const VOCABULARY: usize = 128;
const SEQUENCE: usize = 64;
const SEQUENCES: usize = 4;
const STEPS: u64 = 12;
/// Bandwidth of one gigabit per second.
const SECONDS_PER_BYTE: f64 = 8e-9;

/// Result of a run on one rank.
struct Outcome {
    losses: Vec<f64>,
    weights: u64,
    seconds: f64,
    waited: f64,
}

fn main() -> Result<()> {
    let config = Config::default().with_reduction_order(ReductionOrder::RankOrder);
    let mut naive: Option<Outcome> = None;
    println!("| form | last loss | weights of both ranks | step, ms | waited, ms | tokens/s |");
    println!("|---|--:|---|--:|--:|--:|");
    for form in [GradReduction::Naive, GradReduction::Overlapped, GradReduction::Bucketed] {
        let groups = slow::groups(0.0, SECONDS_PER_BYTE, &config)?;
        let outcome = on_ranks(groups, |group| train(&group, form))?.remove(0);
        let Outcome { losses, weights, seconds, waited } = &outcome;
        let tokens = (2 * SEQUENCES * SEQUENCE) as f64 / seconds;
        let (last, step, waited) = (losses[STEPS as usize - 1], 1e3 * seconds, 1e3 * waited);
        println!("| {form:?} | {last:.6} | {weights:016x} | {step:.1} | {waited:.1} | {tokens:.0} |");
        let naive = naive.get_or_insert_with(|| Outcome { losses: losses.clone(), ..outcome });
        if (losses, weights) != (&naive.losses, &naive.weights) {
            return Err(format!("{form:?} takes other steps than Naive").into());
        }
    }
    println!("the same losses and weights, to the last bit");
    Ok(())
}

fn train(group: &Communicator, form: GradReduction) -> Result<Outcome> {
    let (mut registry, memory) = (Registry::default(), Allocator::default());
    let model =
        Gpt::new(&mut registry, GptConfig::new(VOCABULARY, SEQUENCE, 96, 4, 4), TensorParallel::default())?;
    let inventory = Arc::new(registry.finish());
    let settings = Settings { grad_reduction: form, bucket_bytes: 256 << 10, ..Settings::default() };
    let mut strategy =
        Replicated::new(&inventory, ProcessGroups::data_only(Some(group.clone())), &settings, &memory)?;
    let (mut losses, mut seconds, mut waits) = (Vec::new(), Vec::new(), Vec::new());
    for number in 1..=STEPS {
        let tokens = tokens(group.rank(), number);
        let (inputs, targets) = (&tokens[..SEQUENCES * SEQUENCE], &tokens[1..]);
        let batch = Batch::tokens(inputs, targets, SEQUENCE);
        group.barrier()?;
        strategy.take_wait_time();
        let begun = Instant::now();
        strategy.begin_step(&StepPlan::depth_first(model.block_count(), 1))?;
        let mut pass = Pass::new(&mut strategy, &memory, Seeds::default(), 1);
        let loss = model.forward(&mut pass, &batch)?;
        model.backward(&mut pass, 1.0)?;
        strategy.finish_backward()?;
        strategy.optimizer_step(&AdamW::default(), &Step { number, lr: 1e-3, grad_scale: 1.0 })?;
        seconds.push(begun.elapsed().as_secs_f64());
        waits.push(strategy.take_wait_time().as_secs_f64());
        let mut mean = [f64::from(loss)];
        group.all_reduce(&mut mean, Avg)?;
        losses.push(mean[0]);
    }
    let weights = agreed_weights(&mut strategy, group)?;
    Ok(Outcome { losses, weights, seconds: median(&seconds), waited: median(&waits) })
}

/// Returns this rank's half of the batch of a step.
fn tokens(rank: usize, step: u64) -> Vec<u32> {
    let start = step as usize * 1009 + rank * SEQUENCES * SEQUENCE;
    (start..=start + SEQUENCES * SEQUENCE).map(|at| (at * at % 97) as u32).collect()
}
