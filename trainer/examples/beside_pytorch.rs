//! Rust side of `beside_pytorch.py`: takes training steps of a GPT for each line of input.
//!
//! Arguments: the mode, the number of layers, and the steps per line. The mode is `local` (a
//! hand-written loop over one rank's buffers), `alone` (the strategy on one rank) or `bucketed`
//! (data parallel over the ranks of the environment).

use std::io::{BufRead, Write};
use std::sync::Arc;
use std::time::Instant;
use unisono::Communicator;
use unisono_nn::allocator::Allocator;
use unisono_nn::batch::Batch;
use unisono_nn::model::Model;
use unisono_nn::parameter::{Inventory, ParameterId, Registry, WeightDecay};
use unisono_nn::pass::{Pass, Seeds};
use unisono_nn::step_plan::StepPlan;
use unisono_nn::strategy::{LocalStrategy, Strategy};
use unisono_parallel::data_parallel::{DataParallel, ParallelKind, ProcessGroups, Settings, ShardedStrategy};
use unisono_parallel::optimizer::{AdamW, Optimizer, ParamSlice, Step};
use unisono_parallel::tensor_parallel::TensorParallel;
use unisono_trainer::models::{Gpt, GptConfig};

const VOCABULARY: usize = 2048;
const SEQUENCE: usize = 128;
const SEQUENCES: usize = 8;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Takes a step with the gradients that a pass leaves.
trait Contestant {
    fn step(&mut self, number: u64, both_ways: &dyn Fn(&mut dyn Strategy) -> Result<f32>) -> Result<f32>;
}

/// Hand-written loop over whole buffers.
struct ByHand {
    strategy: LocalStrategy,
    moments: Vec<[Vec<f32>; 2]>,
}

impl Contestant for ByHand {
    fn step(&mut self, number: u64, both_ways: &dyn Fn(&mut dyn Strategy) -> Result<f32>) -> Result<f32> {
        let loss = both_ways(&mut self.strategy)?;
        for (id, [first, second]) in self.moments.iter_mut().enumerate() {
            let (weights, gradient) = self.strategy.weights_mut_and_gradient(ParameterId(id));
            let span = ParamSlice {
                weights,
                gradient,
                moments: &mut [first, second],
                weight_decay: WeightDecay::OfOptimizer,
            };
            AdamW::default().update(span, &step(number));
        }
        self.strategy.zero_gradients();
        Ok(loss)
    }
}

impl Contestant for ShardedStrategy {
    fn step(&mut self, number: u64, both_ways: &dyn Fn(&mut dyn Strategy) -> Result<f32>) -> Result<f32> {
        let loss = both_ways(self)?;
        self.finish_backward()?;
        self.optimizer_step(&AdamW::default(), &step(number))?;
        Ok(loss)
    }
}

fn step(number: u64) -> Step {
    Step { number, lr: 1e-4, grad_scale: 1.0 }
}

fn contestant(kind: &str, inventory: Inventory, memory: &Allocator) -> Result<Box<dyn Contestant>> {
    if kind == "local" {
        let moments = inventory.parameters.iter().map(|p| [vec![0.0; p.count()], vec![0.0; p.count()]]);
        let moments = moments.collect();
        return Ok(Box::new(ByHand { strategy: LocalStrategy::new(inventory, memory, 0), moments }));
    }
    let group = if kind == "alone" { None } else { Some(Communicator::from_env()?) };
    Ok(Box::new(ShardedStrategy::new(
        ParallelKind::Replicated,
        &Arc::new(inventory),
        ProcessGroups::data_only(group),
        &Settings::default(),
        memory,
    )?))
}

fn main() -> Result<()> {
    let arguments: Vec<_> = std::env::args().collect();
    let [_, kind, layers, steps] = &arguments[..] else { return Err("KIND LAYERS STEPS".into()) };
    let (mut registry, memory) = (Registry::default(), Allocator::default());
    let model = Gpt::new(
        &mut registry,
        GptConfig::new(VOCABULARY, SEQUENCE, 256, 4, layers.parse()?),
        TensorParallel::default(),
    )?;
    let mut contestant = contestant(kind, registry.finish(), &memory)?;
    let tokens: Vec<u32> =
        (0..=SEQUENCES * SEQUENCE).map(|index| (index * index % VOCABULARY) as u32).collect();
    let (inputs, targets) = (&tokens[1..], &tokens[..SEQUENCES * SEQUENCE]);
    let both_ways = |strategy: &mut dyn Strategy| {
        let batch = Batch::tokens(inputs, targets, SEQUENCE);
        let mut pass = Pass::new(strategy, &memory, Seeds::default(), 1);
        pass.begin_step(&StepPlan::depth_first(model.block_count(), 1))?;
        let loss = model.forward(&mut pass, &batch)?;
        model.backward(&mut pass, 1.0)?;
        Ok(loss)
    };
    let (steps, mut number, mut loss): (u64, _, _) = (steps.parse()?, 0, 0.0);
    for line in std::io::stdin().lock().lines() {
        line?;
        let begun = Instant::now();
        for _ in 0..steps {
            number += 1;
            loss = contestant.step(number, &both_ways)?;
        }
        println!("{} {loss}", begun.elapsed().as_secs_f64() * 1e3 / steps as f64);
        std::io::stdout().flush()?;
    }
    Ok(())
}
