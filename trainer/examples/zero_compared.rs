//! Compares memory and traffic of the ZeRO stages: `cargo run --release -p unisono-trainer
//! --example zero_compared`.
//!
//! Four ranks train the same GPT: replicated, then with sharded optimizer state, gradients and
//! weights. Losses are bitwise equal. Memory and traffic are counted, and compared with the
//! formulas for Ψ parameters and N ranks.

mod common;

use common::{Result, on_ranks};
use std::sync::Arc;
use unisono::{Avg, Communicator, Config, ReductionOrder};
use unisono_nn::allocator::{AllocClass, Allocator};
use unisono_nn::batch::Batch;
use unisono_nn::model::Model;
use unisono_nn::parameter::Registry;
use unisono_nn::pass::{Pass, Seeds};
use unisono_nn::step_plan::StepPlan;
use unisono_parallel::data_parallel::{ParallelKind, ProcessGroups, Settings, new_strategy};
use unisono_parallel::optimizer::{AdamW, Step};
use unisono_parallel::tensor_parallel::TensorParallel;
use unisono_trainer::models::{Gpt, GptConfig};

const RANKS: usize = 4;
const VOCABULARY: usize = 128;
const SEQUENCE: usize = 32;
const STEPS: u64 = 6;

/// Kind, bytes of (weights, gradients, optimizer) per parameter, and parameters sent per step,
/// times N / (N−1).
const FORMULAS: [(ParallelKind, &str, &str); 4] = [
    (ParallelKind::Replicated, "4Ψ + 4Ψ + 8Ψ", "2Ψ"),
    (ParallelKind::Zero1, "4Ψ + 4Ψ + 8Ψ/N", "2Ψ"),
    (ParallelKind::Zero2, "4Ψ + 4Ψ/N + 8Ψ/N", "2Ψ"),
    (ParallelKind::Zero3, "4Ψ/N + 4Ψ/N + 8Ψ/N", "3Ψ, less what stays between forward and backward"),
];

/// Result of rank 0.
struct Outcome {
    losses: Vec<f64>,
    /// KiB of weights, gradients and optimizer state after backward, and the peak of their sum.
    kept: [usize; 3],
    sent: u64,
    parameters: usize,
}

fn main() -> Result<()> {
    let config = Config::default().with_reduction_order(ReductionOrder::RankOrder);
    let mut replicated: Option<Vec<f64>> = None;
    println!(
        "| strategy | weights, KiB | gradients | optimizer | formula, bytes | sent a step, KiB | formula, parameters × (N−1)/N |"
    );
    println!("|---|--:|--:|--:|---|--:|---|");
    for (kind, memory, traffic) in FORMULAS {
        let ranks = Communicator::builder().config(&config).local(RANKS)?;
        let Outcome { losses, kept: [weights, gradients, optimizer], sent, parameters } =
            on_ranks(ranks, |group| train(&group, kind))?.remove(0);
        if *replicated.get_or_insert_with(|| losses.clone()) != losses {
            return Err(format!("{kind:?} takes other steps than replicas").into());
        }
        println!(
            "| {kind:?} | {weights} | {gradients} | {optimizer} | {memory} | {} | {traffic} |",
            sent >> 10
        );
        if kind == ParallelKind::Zero3 {
            println!(
                "Ψ = {parameters}, N = {RANKS}; the same losses to the last bit, {:.6} at last",
                losses[STEPS as usize - 1]
            );
        }
    }
    Ok(())
}

fn train(group: &Communicator, kind: ParallelKind) -> Result<Outcome> {
    let (mut registry, memory) = (Registry::default(), Allocator::default());
    let model =
        Gpt::new(&mut registry, GptConfig::new(VOCABULARY, SEQUENCE, 64, 4, 4), TensorParallel::default())?;
    let inventory = Arc::new(registry.finish());
    let settings = Settings { bucket_bytes: 128 << 10, ..Settings::default() };
    let mut strategy =
        new_strategy(kind, &inventory, ProcessGroups::data_only(Some(group.clone())), &settings, &memory)?;
    let (mut losses, mut kept, mut sent) = (Vec::new(), [0; 3], 0);
    for number in 1..=STEPS {
        let start = (number as usize * RANKS + group.rank()) * 2 * SEQUENCE;
        let tokens: Vec<u32> =
            (start..=start + 2 * SEQUENCE).map(|index| (index * index % 97) as u32).collect();
        let batch = Batch::tokens(&tokens[..2 * SEQUENCE], &tokens[1..], SEQUENCE);
        let bytes_before = group.traffic_stats()?.bytes;
        strategy.begin_step(&StepPlan::depth_first(model.block_count(), 1))?;
        let mut pass = Pass::new(&mut *strategy, &memory, Seeds::default(), 1);
        let loss = model.forward(&mut pass, &batch)?;
        model.backward(&mut pass, 1.0)?;
        strategy.finish_backward()?;
        if number > 1 {
            kept = [AllocClass::Weights, AllocClass::Gradients, AllocClass::Optimizer]
                .map(|class| memory.usage(class).current >> 10);
        }
        strategy.optimizer_step(&AdamW::default(), &Step { number, lr: 1e-3, grad_scale: 1.0 })?;
        strategy.wait_all()?;
        sent = group.traffic_stats()?.bytes - bytes_before;
        let mut mean = [f64::from(loss)];
        group.all_reduce(&mut mean, Avg)?;
        losses.push(mean[0]);
    }
    Ok(Outcome { losses, kept, sent, parameters: inventory.count() })
}
