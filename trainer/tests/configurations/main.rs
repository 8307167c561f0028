//! The same model, data and steps on many meshes match the results of one rank.

mod pairs;
mod references;
mod sample;
mod small_run;

use std::collections::BTreeMap;
use std::sync::Arc;
use unisono::{Communicator, Config, ReductionOrder};
use unisono_nn::allocator::Allocator;
use unisono_nn::batch::Batch;
use unisono_nn::model::Model;
use unisono_nn::parameter::{ParameterId, Registry};
use unisono_nn::pass::{Pass, Seeds};
use unisono_nn::process_group::ProcessGroup;
use unisono_nn::step_plan::StepPlan;
use unisono_parallel::data_parallel::{LocalShard, ParallelKind, ProcessGroups, Settings, new_strategy};
use unisono_parallel::mesh::{Degrees, GroupKind, Mesh, MeshGroups};
use unisono_parallel::optimizer::{AdamW, Step};
use unisono_parallel::tensor_parallel::TensorParallel;
use unisono_trainer::models::{FeedForward, Gpt, GptConfig, Norm};

/// Differences from one rank with whole batches.
#[derive(Clone, Copy, Debug)]
struct Setup {
    tensor: usize,
    data: usize,
    sequence: bool,
    kind: ParallelKind,
    accumulation: usize,
}

const ALONE: Setup =
    Setup { tensor: 1, data: 1, sequence: false, kind: ParallelKind::Replicated, accumulation: 1 };

const SAMPLES: usize = 12;
const SEQUENCE: usize = 6;
const VOCABULARY: usize = 13;

/// Losses and norms of each step, and all weights by parameter and index in the whole tensor.
#[derive(Debug)]
struct Outcome {
    losses: Vec<f64>,
    norms: Vec<f64>,
    weights: BTreeMap<(ParameterId, usize), f32>,
}

/// Returns sample `sample` of step `step`.
fn tokens(step: u64, sample: usize) -> Vec<u32> {
    let token = |index: usize| {
        let hash = (step * 1009 + sample as u64 * 31 + index as u64 / 2).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((hash >> 33) % VOCABULARY as u64) as u32
    };
    (0..=SEQUENCE).map(token).collect()
}

fn train(world: &Communicator, setup: Setup, config: &GptConfig, steps: u64) -> Outcome {
    let degrees = Degrees { tensor: setup.tensor, ..Degrees::default() };
    let mesh = Mesh::new(world.size(), degrees).unwrap();
    let groups = MeshGroups::new(world, mesh).unwrap();
    let (data, tensor) = (groups.get(GroupKind::Data).cloned(), groups.get(GroupKind::Tensor).cloned());
    let data_rank = data.as_ref().map_or(0, Communicator::rank);
    let split =
        TensorParallel::new(tensor.clone().map(ProcessGroup::from), setup.sequence, config.parallel_plan());
    let (mut registry, memory) = (Registry::default(), Allocator::default());
    let model = Gpt::new(&mut registry, config.clone(), split).unwrap();
    let inventory = Arc::new(registry.finish());
    let team = ProcessGroups::new(data, tensor.as_ref()).unwrap();
    let settings = Settings { seed: 5, bucket_bytes: 3000, ..Settings::default() };
    let mut strategy = new_strategy(setup.kind, &inventory, team, &settings, &memory).unwrap();
    let mut outcome = Outcome { losses: Vec::new(), norms: Vec::new(), weights: BTreeMap::new() };
    let micro = SAMPLES / setup.data / setup.accumulation;
    for number in 1..=steps {
        let mut loss = 0.0;
        strategy.begin_step(&StepPlan::depth_first(model.block_count(), setup.accumulation)).unwrap();
        for part in 0..setup.accumulation {
            let first = data_rank * SAMPLES / setup.data + part * micro;
            let samples: Vec<_> = (first..first + micro).map(|sample| tokens(number, sample)).collect();
            let inputs: Vec<_> = samples.iter().flat_map(|tokens| &tokens[..SEQUENCE]).copied().collect();
            let targets: Vec<_> = samples.iter().flat_map(|tokens| &tokens[1..]).copied().collect();
            let batch = Batch::tokens(&inputs, &targets, SEQUENCE);
            let mut pass = Pass::new(&mut *strategy, &memory, Seeds::default(), 1);
            loss += f64::from(model.forward(&mut pass, &batch).unwrap()) / setup.accumulation as f64;
            model.backward(&mut pass, 1.0 / setup.accumulation as f32).unwrap();
        }
        strategy.finish_backward().unwrap();
        let mut mean = [loss / setup.data as f64];
        groups.get(GroupKind::Data).map_or(Ok(()), |data| data.all_reduce(&mut mean, unisono::Sum)).unwrap();
        let norm = strategy.grad_norm().unwrap();
        let factor = (1.0 / (norm + 1e-6)).min(1.0) as f32;
        strategy.optimizer_step(&AdamW::default(), &Step { number, lr: 1e-3, grad_scale: factor }).unwrap();
        outcome.losses.push(mean[0]);
        outcome.norms.push(norm);
    }
    let mut keep = |part: LocalShard<'_>| {
        for (index, value) in part.range.clone().zip(&*part.weights) {
            let place = inventory[part.parameter].global_index(index);
            if let Some(place) = place {
                outcome.weights.insert((part.parameter, place), *value);
            }
        }
        Ok(())
    };
    strategy.for_each_shard(&mut keep).unwrap();
    outcome
}

fn run(setup: Setup, config: &GptConfig, steps: u64) -> Outcome {
    let options = Config::default().with_reduction_order(ReductionOrder::RankOrder);
    let worlds = Communicator::builder().config(&options).local(setup.tensor * setup.data).unwrap();
    let mut outcomes: Vec<Outcome> = std::thread::scope(|scope| {
        let threads: Vec<_> = worlds
            .into_iter()
            .map(|world| scope.spawn(move || train(&world, setup, config, steps)))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut first = outcomes.remove(0);
    for other in outcomes {
        assert_eq!((&first.losses, &first.norms), (&other.losses, &other.norms), "ranks differ: {setup:?}");
        first.weights.extend(other.weights);
    }
    first
}

fn assert_near(setup: Setup, found: &Outcome, reference: &Outcome) {
    let close = |value: f64, expected: f64, tolerance: f64| {
        (value - expected).abs() <= tolerance * expected.abs().max(1e-3)
    };
    for (what, found, reference) in
        [("loss", &found.losses, &reference.losses), ("norm", &found.norms, &reference.norms)]
    {
        for (step, (&value, &expected)) in found.iter().zip(reference).enumerate() {
            assert!(
                close(value, expected, 1e-5),
                "{setup:?}: {what} of step {step} is {value}, not {expected}"
            );
        }
    }
    assert_eq!(found.weights.len(), reference.weights.len(), "{setup:?}");
    for (place, &weight) in &found.weights {
        let other = reference.weights[place];
        assert!((weight - other).abs() < 1e-4, "{setup:?}: {place:?} is {weight}, not {other}");
    }
}

fn configs() -> [GptConfig; 2] {
    let base = GptConfig::new(VOCABULARY, SEQUENCE, 24, 6, 2);
    let modern = GptConfig {
        tie_word_embeddings: false,
        norm: Norm::Rms,
        feed_forward: FeedForward::SwiGlu,
        ..base.clone()
    };
    [base, modern]
}

#[test]
fn meshes_match_one_rank() {
    for config in configs() {
        let reference = run(ALONE, &config, 4);
        assert!(reference.losses[3] < reference.losses[0]);
        for setup in [
            Setup { accumulation: 4, ..ALONE },
            Setup { data: 2, ..ALONE },
            Setup { data: 2, kind: ParallelKind::Zero2, accumulation: 3, ..ALONE },
            Setup { data: 3, kind: ParallelKind::Zero3, ..ALONE },
            Setup { tensor: 2, ..ALONE },
            Setup { tensor: 2, sequence: true, ..ALONE },
            Setup { tensor: 2, accumulation: 2, ..ALONE },
            Setup { tensor: 3, kind: ParallelKind::Zero1, ..ALONE },
            Setup { tensor: 4, sequence: true, kind: ParallelKind::Zero3, ..ALONE },
            Setup { tensor: 2, data: 2, sequence: true, ..ALONE },
            Setup { tensor: 2, data: 2, sequence: true, kind: ParallelKind::Zero3, accumulation: 3 },
            Setup { tensor: 3, data: 2, kind: ParallelKind::Zero2, ..ALONE },
        ] {
            assert_near(setup, &run(setup, &config, 4), &reference);
        }
    }
}

#[test]
fn strategies_are_bitwise_equal_with_tensor_parallel() {
    let config = &configs()[0];
    let outcome_of =
        |kind| run(Setup { tensor: 2, data: 2, sequence: true, kind, accumulation: 1 }, config, 5);
    let reference = outcome_of(ParallelKind::Replicated);
    for kind in [ParallelKind::Zero1, ParallelKind::Zero2, ParallelKind::Zero3] {
        let found = outcome_of(kind);
        assert_eq!((&found.losses, &found.norms), (&reference.losses, &reference.norms), "{kind:?}");
        assert!(found.weights == reference.weights, "{kind:?}");
    }
}
