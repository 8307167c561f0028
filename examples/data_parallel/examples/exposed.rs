//! Measures how much communication backward hides: `cargo run --release -p
//! unisono-data-parallel --example exposed`.
//!
//! Two ranks, as threads, train a GPT over links so slow that communication takes as long as
//! backward. The table shows the time a rank waits for communication per step, after backward or by
//! bucket during backward. It also shows how much longer a step is than without communication. That
//! includes copies and sums for communication, if no core is free for them.

use std::sync::{Arc, Barrier};
use std::time::Instant;
use unisono::{Communicator, Config};
use unisono_data_parallel::{FormKind, slow_groups};
use unisono_nn::allocator::Allocator;
use unisono_nn::batch::Batch;
use unisono_nn::model::Model;
use unisono_nn::parameter::Registry;
use unisono_nn::pass::{Pass, Seeds};
use unisono_nn::step_plan::StepPlan;
use unisono_parallel::optimizer::{Sgd, Step};
use unisono_parallel::tensor_parallel::TensorParallel;
use unisono_trainer::models::{Gpt, GptConfig};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const VOCABULARY: usize = 512;
const SEQUENCE: usize = 128;
const LAYERS: usize = 8;
const STEPS: usize = 15;
/// With few sequences, a bucket has time to be sent while the next one is computed.
const SEQUENCES: usize = 2;
const BUCKET_BYTES: usize = 1 << 20;

/// Medians of one rank's steps, in seconds.
struct Times {
    step: f64,
    backward: f64,
    waited: f64,
    bytes: usize,
}

fn train(group: &Communicator, form: FormKind, together: &Barrier) -> Result<Times> {
    let (mut registry, memory) = (Registry::default(), Allocator::default());
    let model = Gpt::new(
        &mut registry,
        GptConfig::new(VOCABULARY, SEQUENCE, 256, 4, LAYERS),
        TensorParallel::default(),
    )?;
    let inventory = Arc::new(registry.finish());
    let mut strategy = form.create(&inventory, group, &memory, BUCKET_BYTES)?;
    let tokens: Vec<u32> =
        (0..=SEQUENCES * SEQUENCE).map(|position| (position * position % VOCABULARY) as u32).collect();
    let (inputs, targets) = (&tokens[1..], &tokens[..SEQUENCES * SEQUENCE]);
    let batch = Batch::tokens(inputs, targets, SEQUENCE);
    let (mut steps, mut backwards, mut waits) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..=STEPS as u64 {
        together.wait();
        strategy.take_wait_time();
        let begun = Instant::now();
        strategy.begin_step(&StepPlan::depth_first(model.block_count(), 1))?;
        let mut pass = Pass::new(&mut *strategy, &memory, Seeds::default(), 1);
        model.forward(&mut pass, &batch)?;
        let turned = Instant::now();
        model.backward(&mut pass, 1.0)?;
        backwards.push(turned.elapsed().as_secs_f64());
        strategy.finish_backward()?;
        strategy.optimizer_step(&Sgd::default(), &Step { number: number + 1, lr: 1e-3, grad_scale: 1.0 })?;
        steps.push(begun.elapsed().as_secs_f64());
        waits.push(strategy.take_wait_time().as_secs_f64());
    }
    // The first step allocates all buffers.
    let [step, backward, waited] = [steps, backwards, waits].map(|values| median(values[1..].to_vec()));
    Ok(Times { step, backward, waited, bytes: 4 * inventory.count() })
}

/// Returns the times of the slower of two ranks.
fn both(groups: Vec<Communicator>, form: FormKind) -> Result<Times> {
    let together = &Barrier::new(2);
    let times = std::thread::scope(|scope| {
        let ranks = groups.into_iter().map(|group| scope.spawn(move || train(&group, form, together)));
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect::<Result<Vec<_>>>()
    })?;
    times.into_iter().max_by(|times, other| times.step.total_cmp(&other.step)).ok_or("two ranks".into())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> Result<()> {
    let single = || Communicator::local(1).map(|mut ranks| ranks.remove(0));
    let alone = both(vec![single()?, single()?], FormKind::Bucketed)?;
    // Each of two ranks sends half of the gradients twice.
    let seconds_per_byte = alone.backward / alone.bytes as f64;
    let run = |form| both(slow_groups(0.0, seconds_per_byte, &Config::default())?, form);
    let ms = |seconds: f64| seconds * 1e3;
    println!("alone: {:.1} ms a step, backward {:.1} ms", ms(alone.step), ms(alone.backward));
    println!("links of {:.0} MB/s for {} MB of gradients", 1e-6 / seconds_per_byte, alone.bytes / 1_000_000);
    println!("| form | waited, ms | of naive | step, ms | longer, ms | of naive |");
    println!("|---|--:|--:|--:|--:|--:|");
    let mut naive = None;
    for form in [FormKind::Naive, FormKind::Overlapped, FormKind::Bucketed] {
        let times = run(form)?;
        let (waited, longer) = (times.waited, times.step - alone.step);
        let (naive_waited, naive_longer) = *naive.get_or_insert((waited, longer));
        let (of_waited, of_longer) = (100.0 * waited / naive_waited, 100.0 * longer / naive_longer);
        let [waited, step, longer] = [waited, times.step, longer].map(ms);
        println!(
            "| {form:?} | {waited:.1} | {of_waited:.0} % | {step:.1} | {longer:.1} | {of_longer:.0} % |"
        );
    }
    Ok(())
}
