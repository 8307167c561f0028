//! Runs a pipeline of three stages with the communicator alone: `cargo run --release -p
//! unisono-trainer --example pipeline`.
//!
//! Each rank has one layer y = w x, elementwise. *Naive* sends the whole batch through all stages
//! and back, so that one rank works at a time. *Micro-batches* sends a part as soon as it is
//! computed, so that the next stage starts earlier. Sends and receives block here;
//! `unisono_parallel::pipeline` overlaps them. Both give the gradients of one rank.

mod common;

use common::{Result, on_ranks};
use std::thread::sleep;
use std::time::{Duration, Instant};
use unisono::Communicator;

const RANKS: usize = 3;
const BATCH: usize = 12;
/// Time of a sample in one layer, in one direction.
const WORK: Duration = Duration::from_millis(4);

/// Layer of one rank.
struct Stage<'a> {
    ranks: &'a Communicator,
    weight: f32,
    gradient: f32,
    /// Inputs of forward, by micro-batch, for backward.
    inputs: Vec<Vec<f32>>,
    prints: bool,
}

impl Stage<'_> {
    fn say(&self, what: &str, micro_batch: usize) {
        if self.prints {
            println!("rank {} {what} micro-batch {micro_batch}", self.ranks.rank());
        }
    }

    fn forward(&mut self, micro_batch: usize, first: &[f32]) -> Result<()> {
        let rank = self.ranks.rank();
        let mut input = first.to_vec();
        if rank > 0 {
            self.ranks.recv(&mut input, rank - 1)?;
        }
        sleep(WORK * input.len() as u32);
        let output: Vec<f32> = input.iter().map(|x| self.weight * x).collect();
        self.inputs.push(input);
        if rank + 1 < RANKS {
            self.say("sends the output of", micro_batch);
            self.ranks.send(&output, rank + 1)?;
        }
        Ok(())
    }

    /// The loss is the sum of the outputs of the last stage, so that its gradient is 1.
    fn backward(&mut self, micro_batch: usize) -> Result<()> {
        let (rank, input) = (self.ranks.rank(), self.inputs[micro_batch].clone());
        let mut slope = vec![1.0; input.len()];
        if rank + 1 < RANKS {
            self.ranks.recv(&mut slope, rank + 1)?;
        }
        sleep(WORK * input.len() as u32);
        self.gradient += input.iter().zip(&slope).map(|(x, dy)| x * dy).sum::<f32>();
        if rank > 0 {
            slope.iter_mut().for_each(|dy| *dy *= self.weight);
            self.say("sends the gradient of", micro_batch);
            self.ranks.send(&slope, rank - 1)?;
        }
        Ok(())
    }
}

fn weight(stage: usize) -> f32 {
    1.5 + stage as f32
}

/// Runs a step in `parts` micro-batches. Returns this rank's gradient and the time.
fn step(ranks: &Communicator, parts: usize, prints: bool) -> Result<(f32, Duration)> {
    let batch: Vec<f32> = (0..BATCH).map(|sample| sample as f32).collect();
    let weight = weight(ranks.rank());
    let mut stage = Stage { ranks, weight, gradient: 0.0, inputs: Vec::new(), prints };
    ranks.barrier()?;
    let start = Instant::now();
    for (number, part) in batch.chunks(BATCH / parts).enumerate() {
        stage.forward(number, part)?;
    }
    for number in 0..parts {
        stage.backward(number)?;
    }
    ranks.barrier()?;
    Ok((stage.gradient, start.elapsed()))
}

fn main() -> Result<()> {
    let found = on_ranks(Communicator::local(RANKS)?, |ranks| {
        let (naive, naive_time) = step(&ranks, 1, false)?;
        let (gradient, time) = step(&ranks, 4, true)?;
        assert_eq!(gradient, naive, "micro-batches have the gradients of the whole batch");
        Ok((gradient, naive_time, time))
    })?;
    let sum: f32 = (0..BATCH).map(|sample| sample as f32).sum();
    for (stage, (gradient, ..)) in found.iter().enumerate() {
        let others: f32 = (0..RANKS).filter(|&other| other != stage).map(weight).product();
        assert_eq!(*gradient, sum * others, "the gradient of one rank");
    }
    let (_, naive_time, time) = found[0];
    println!("naive {} ms, four micro-batches {} ms", naive_time.as_millis(), time.as_millis());
    assert!(time < naive_time * 3 / 4, "micro-batches shorten the step");
    Ok(())
}
