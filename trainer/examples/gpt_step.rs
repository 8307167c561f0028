//! Measures a forward and backward pass of a GPT in milliseconds: `cargo run --release -p
//! unisono-trainer --example gpt_step -- 2` for two layers. `gpt_step.py` does the same with
//! PyTorch.
//!
//! Counts processor time, so other programs do not matter.

mod common;

use common::median;
use std::time::Instant;
use unisono_nn::allocator::{AllocClass, Allocator};
use unisono_nn::batch::Batch;
use unisono_nn::model::Model;
use unisono_nn::parameter::Registry;
use unisono_nn::pass::{Pass, Seeds};
use unisono_nn::strategy::LocalStrategy;
use unisono_parallel::tensor_parallel::TensorParallel;
use unisono_trainer::models::{Gpt, GptConfig};

const VOCABULARY: usize = 2048;
const SEQUENCE: usize = 128;
const SEQUENCES: usize = 8;
const STEPS: usize = 30;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let layers = std::env::args().nth(1).map_or(Ok(2), |layers| layers.parse())?;
    let threads = std::env::args().nth(2).map_or(Ok(1), |threads| threads.parse())?;
    let (mut registry, memory) = (Registry::default(), Allocator::default());
    let model = Gpt::new(
        &mut registry,
        GptConfig::new(VOCABULARY, SEQUENCE, 256, 4, layers),
        TensorParallel::default(),
    )?;
    let mut strategy = LocalStrategy::new(registry.finish(), &memory, 1);
    let tokens: Vec<u32> =
        (0..=SEQUENCES * SEQUENCE).map(|index| (index * index % VOCABULARY) as u32).collect();
    let (inputs, targets) = (&tokens[1..], &tokens[..SEQUENCES * SEQUENCE]);
    let batch = Batch::tokens(inputs, targets, SEQUENCE);
    let (mut wall, mut processor, mut loss) = (Vec::new(), Vec::new(), 0.0);
    for _ in 0..STEPS {
        let (start, processor_before) = (Instant::now(), on_processor()?);
        strategy.zero_gradients();
        let mut pass = Pass::new(&mut strategy, &memory, Seeds::default(), threads);
        loss = model.forward(&mut pass, &batch)?;
        model.backward(&mut pass, 1.0)?;
        wall.push(start.elapsed().as_secs_f64() * 1e3);
        processor.push((on_processor()? - processor_before) as f64 / 1e6);
    }
    let peak = memory.usage(AllocClass::Activations).peak >> 20;
    let (wall, processor) = (median(&wall), median(&processor));
    println!(
        "{layers} layers: {processor:.1} ms on the processor, {wall:.1} ms in all, {peak} MiB of activations, loss {loss}"
    );
    Ok(())
}

/// Returns the processor time of this thread in nanoseconds.
fn on_processor() -> Result<u64, Box<dyn std::error::Error>> {
    let statistics = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    Ok(statistics.split(' ').next().ok_or("nothing there")?.parse()?)
}
