//! Compares forms of data parallelism: `cargo run --release -p unisono-data-parallel`.
//!
//! Two ranks train the same GPT on halves of the same batches, over slow links. Losses and weights
//! are bitwise equal; time and bytes differ.

use std::sync::Arc;
use std::time::Instant;
use unisono::{Avg, Communicator, Config, ReductionOrder};
use unisono_data_parallel::{FormKind, slow_groups};
use unisono_nn::allocator::Allocator;
use unisono_nn::batch::Batch;
use unisono_nn::model::Model;
use unisono_nn::parameter::Registry;
use unisono_nn::pass::{Pass, Seeds};
use unisono_nn::step_plan::StepPlan;
use unisono_parallel::optimizer::{AdamW, Step};
use unisono_parallel::tensor_parallel::TensorParallel;
use unisono_trainer::models::{Gpt, GptConfig};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const VOCABULARY: usize = 128;
const SEQUENCE: usize = 64;
const SEQUENCES: usize = 4;
const STEPS: u64 = 12;
const BUCKET_BYTES: usize = 256 << 10;
/// Bandwidth of one gigabit per second.
const SECONDS_PER_BYTE: f64 = 8e-9;

/// Result of a run on one rank.
struct Outcome {
    losses: Vec<f64>,
    /// Hash of the weights, equal on all ranks.
    weights: u64,
    seconds: f64,
    waited: f64,
    /// Bytes sent in a step.
    sent: u64,
}

fn main() -> Result<()> {
    let config = Config::default().with_reduction_order(ReductionOrder::RankOrder);
    println!(
        "| form | last loss | weights of both ranks | step, ms | waited, ms | of naive | sent, KiB | tokens/s |"
    );
    println!("|---|--:|---|--:|--:|--:|--:|--:|");
    let mut naive: Option<Outcome> = None;
    for form in FormKind::ALL {
        let outcome = run(slow_groups(0.0, SECONDS_PER_BYTE, &config)?, form)?;
        let Outcome { losses, weights, seconds, waited, sent } = &outcome;
        let tokens = (2 * SEQUENCES * SEQUENCE) as f64 / seconds;
        let (last, of_naive) =
            (losses[STEPS as usize - 1], naive.as_ref().map_or(1.0, |naive| waited / naive.waited));
        println!(
            "| {form:?} | {last:.6} | {weights:016x} | {:.1} | {:.1} | {:.0} % | {} | {tokens:.0} |",
            1e3 * seconds,
            1e3 * waited,
            100.0 * of_naive,
            sent >> 10
        );
        let is_equal =
            naive.as_ref().is_none_or(|naive| (losses, weights) == (&naive.losses, &naive.weights));
        if !is_equal {
            return Err(format!("{form:?} takes other steps than Naive").into());
        }
        naive.get_or_insert(outcome);
    }
    println!("the same losses and weights, to the last bit");
    Ok(())
}

/// Trains on all ranks, and returns the result of rank 0.
fn run(groups: Vec<Communicator>, form: FormKind) -> Result<Outcome> {
    let mut outcomes = std::thread::scope(|scope| {
        let threads: Vec<_> =
            groups.into_iter().map(|group| scope.spawn(move || train(&group, form))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect::<Result<Vec<_>>>()
    })?;
    if outcomes.iter().any(|other| other.weights != outcomes[0].weights) {
        return Err(format!("{form:?}: ranks have different weights").into());
    }
    Ok(outcomes.remove(0))
}

fn train(group: &Communicator, form: FormKind) -> Result<Outcome> {
    let (mut registry, memory) = (Registry::default(), Allocator::default());
    let config = GptConfig::new(VOCABULARY, SEQUENCE, 96, 4, 4);
    let model = Gpt::new(&mut registry, config, TensorParallel::default())?;
    let inventory = Arc::new(registry.finish());
    let mut strategy = form.create(&inventory, group, &memory, BUCKET_BYTES)?;
    let (mut losses, mut seconds, mut waits, mut sent) = (Vec::new(), Vec::new(), Vec::new(), 0);
    for number in 1..=STEPS {
        let tokens = tokens(group.rank(), number);
        let batch = Batch::tokens(&tokens[..SEQUENCES * SEQUENCE], &tokens[1..], SEQUENCE);
        group.barrier()?;
        let start_bytes = group.traffic_stats()?.bytes;
        strategy.take_wait_time();
        let begun = Instant::now();
        strategy.begin_step(&StepPlan::depth_first(model.block_count(), 1))?;
        let mut pass = Pass::new(&mut *strategy, &memory, Seeds::default(), 1);
        let loss = model.forward(&mut pass, &batch)?;
        model.backward(&mut pass, 1.0)?;
        strategy.finish_backward()?;
        strategy.optimizer_step(&AdamW::default(), &Step { number, lr: 1e-3, grad_scale: 1.0 })?;
        seconds.push(begun.elapsed().as_secs_f64());
        waits.push(strategy.take_wait_time().as_secs_f64());
        sent = group.traffic_stats()?.bytes - start_bytes;
        let mut mean = [f64::from(loss)];
        group.all_reduce(&mut mean, Avg)?;
        losses.push(mean[0]);
    }
    let weights = hash(&strategy.weight_bits()?);
    Ok(Outcome { losses, weights, seconds: median(seconds), waited: median(waits), sent })
}

/// Returns this rank's half of the batch of a step.
fn tokens(rank: usize, step: u64) -> Vec<u32> {
    let start = step as usize * 1009 + rank * SEQUENCES * SEQUENCE;
    (start..=start + SEQUENCES * SEQUENCE).map(|position| (position * position % 97) as u32).collect()
}

/// Returns the FNV-1a hash of numbers.
fn hash(numbers: &[u32]) -> u64 {
    let mix = |hash: u64, number: &u32| (hash ^ u64::from(*number)).wrapping_mul(0x0100_0000_01b3);
    numbers.iter().fold(0xcbf2_9ce4_8422_2325, mix)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
