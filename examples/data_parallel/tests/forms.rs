//! Every form takes the same steps, and sends and keeps what its description says.

use std::sync::Arc;
use std::time::{Duration, Instant};
use unisono::{Communicator, Config, ReductionOrder};
use unisono_data_parallel::{Form, FormKind, Owners, Replica};
use unisono_nn::allocator::Allocator;
use unisono_nn::batch::Batch;
use unisono_nn::model::Model;
use unisono_nn::parameter::{Init, Inventory, Parameter, ParameterId, Registry, UnitId};
use unisono_nn::pass::{Pass, Seeds};
use unisono_nn::step_plan::{Direction, StepPlan};
use unisono_nn::strategy::Strategy;
use unisono_parallel::optimizer::{AdamW, Step};
use unisono_parallel::tensor_parallel::TensorParallel;
use unisono_trainer::models::{Gpt, GptConfig};

const STEP: Step = Step { number: 1, lr: 0.01, grad_scale: 1.0 };

fn on_ranks<R: Send>(count: usize, config: &Config, body: impl Fn(&Communicator) -> R + Sync) -> Vec<R> {
    let ranks = Communicator::builder().config(config).local(count).unwrap();
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks.iter().map(|rank| scope.spawn(|| body(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn rank_order() -> Config {
    Config::default().with_reduction_order(ReductionOrder::RankOrder)
}

/// Returns the bits of losses and final weights of a GPT with tied embeddings, after four steps of
/// two micro-batches.
fn train(form: FormKind, group: &Communicator) -> (Vec<u32>, Vec<u32>) {
    let (mut registry, memory) = (Registry::default(), Allocator::default());
    let model = Gpt::new(&mut registry, GptConfig::new(7, 8, 8, 2, 2), TensorParallel::default()).unwrap();
    let inventory = Arc::new(registry.finish());
    let mut strategy = form.create(&inventory, group, &memory, 600).unwrap();
    let mut losses = Vec::new();
    for number in 1..=4 {
        strategy.begin_step(&StepPlan::depth_first(model.block_count(), 2)).unwrap();
        for micro in 0..2 {
            let start = 100 * number as usize + 10 * group.rank() + 3 * micro;
            let tokens: Vec<u32> =
                (start..=start + 16).map(|position| (position * position % 7) as u32).collect();
            let mut pass = Pass::new(&mut *strategy, &memory, Seeds::default(), 1);
            losses.push(
                model.forward(&mut pass, &Batch::tokens(&tokens[..16], &tokens[1..], 8)).unwrap().to_bits(),
            );
            model.backward(&mut pass, 0.5).unwrap();
        }
        strategy.finish_backward().unwrap();
        strategy.optimizer_step(&AdamW::default(), &Step { number, ..STEP }).unwrap();
    }
    (losses, strategy.weight_bits().unwrap())
}

#[test]
fn forms_take_the_same_steps() {
    for ranks in [1, 2, 3, 5] {
        let run = |form| on_ranks(ranks, &rank_order(), |group| train(form, group));
        let production = run(FormKind::Bucketed);
        assert!(production.iter().all(|(_, weights)| *weights == production[0].1));
        for form in FormKind::ALL {
            assert!(run(form) == production, "{form:?} on {ranks} ranks");
        }
    }
}

/// Returns `count` units of one parameter of 960 elements each.
fn equal_units(count: usize) -> Arc<Inventory> {
    let mut registry = Registry::default();
    for layer in 0..count {
        let add =
            |registry: &mut Registry| registry.add(Parameter::new("weight", &[32, 30], Init::Normal(0.5)));
        registry.unit(&format!("h.{layer}"), add);
    }
    Arc::new(registry.finish())
}

/// Runs the backward of one unit, whose gradient becomes its weights.
fn visit(strategy: &mut dyn Form, unit: usize) {
    strategy.pre_unit(UnitId(unit), Direction::Backward).unwrap();
    let (weights, gradient) = strategy.weights_and_gradient(ParameterId(unit)).unwrap();
    gradient.copy_from_slice(weights);
    strategy.grad_ready(ParameterId(unit)).unwrap();
    strategy.post_unit(UnitId(unit), Direction::Backward).unwrap();
}

/// Returns the collectives begun by the time the last of six units is through backward, and by the
/// end of backward.
fn collectives(form: FormKind) -> [u64; 2] {
    let counts = on_ranks(2, &rank_order(), |group| {
        let mut strategy = form.create(&equal_units(6), group, &Allocator::default(), 2 * 4 * 960).unwrap();
        // Reading the statistics waits for collectives under way.
        let operations = || group.traffic_stats().unwrap().operations;
        let start_count = operations();
        strategy.begin_step(&StepPlan::depth_first(6, 1)).unwrap();
        visit(&mut *strategy, 5);
        let early = operations() - start_count;
        (0..5).rev().for_each(|unit| visit(&mut *strategy, unit));
        strategy.finish_backward().unwrap();
        [early, operations() - start_count]
    });
    assert_eq!(counts[0], counts[1]);
    counts[0]
}

#[test]
fn only_naive_form_waits_for_the_end_of_backward() {
    assert_eq!(collectives(FormKind::Naive), [0, 6]);
    assert_eq!(collectives(FormKind::Overlapped), [1, 6]);
    assert_eq!(collectives(FormKind::Owners), [1, 6]);
    // Buckets hold two gradients each.
    assert_eq!(collectives(FormKind::Bucketed), [0, 3]);
}

/// Returns the bytes that rank 0 of two sends in backward and after the step.
fn sent(form: FormKind) -> [u64; 2] {
    let two_shot = rank_order().with_algorithms(unisono::parse_algorithms("twoshot").unwrap());
    let counts = on_ranks(2, &two_shot, |group| {
        let mut strategy = form.create(&equal_units(6), group, &Allocator::default(), 1 << 20).unwrap();
        let bytes = || group.traffic_stats().unwrap().bytes;
        strategy.begin_step(&StepPlan::depth_first(6, 1)).unwrap();
        let start_bytes = bytes();
        (0..6).rev().for_each(|unit| visit(&mut *strategy, unit));
        strategy.finish_backward().unwrap();
        let reduced = bytes();
        strategy.optimizer_step(&AdamW::default(), &STEP).unwrap();
        strategy.weight_bits().unwrap();
        [reduced - start_bytes, bytes() - reduced]
    });
    // Half of the broadcasts begin at each of two ranks.
    [0, 1].map(|phase| (counts[0][phase] + counts[1][phase]) / 2)
}

#[test]
fn owners_send_half_as_much_again() {
    // Ψ parameters in 4 bytes, of which two ranks send a half each.
    let psi = 6 * 960 * 4 / 2;
    for form in [FormKind::Naive, FormKind::Overlapped, FormKind::Bucketed] {
        assert_eq!(sent(form), [2 * psi, 0], "{form:?}");
    }
    assert_eq!(sent(FormKind::Owners), [2 * psi, psi]);
}

#[test]
fn owners_share_out_the_state() {
    let inventory = equal_units(5);
    let kept = on_ranks(2, &rank_order(), |group| {
        let mut strategy = Owners::new(Replica::new(&inventory, group, 0).unwrap());
        strategy.begin_step(&StepPlan::depth_first(5, 1)).unwrap();
        (0..5).rev().for_each(|unit| visit(&mut strategy, unit));
        strategy.finish_backward().unwrap();
        strategy.optimizer_step(&AdamW::default(), &STEP).unwrap();
        strategy.weight_bits().unwrap();
        (strategy.replica().state_count(), strategy.owners().to_vec())
    });
    assert_eq!(kept[0], (3 * 2 * 960, vec![0, 1, 0, 1, 0]));
    assert_eq!(kept[1], (2 * 2 * 960, vec![0, 1, 0, 1, 0]));
}

#[test]
fn weights_of_owners_travel_while_the_rank_is_busy() {
    let late = Duration::from_millis(500);
    let times = on_ranks(2, &rank_order(), |group| {
        let mut strategy = FormKind::Owners.create(&equal_units(6), group, &Allocator::default(), 1).unwrap();
        strategy.begin_step(&StepPlan::depth_first(6, 1)).unwrap();
        (0..6).rev().for_each(|unit| visit(&mut *strategy, unit));
        strategy.finish_backward().unwrap();
        if group.rank() == 1 {
            std::thread::sleep(late);
        }
        let begun = Instant::now();
        strategy.optimizer_step(&AdamW::default(), &STEP).unwrap();
        let updated = begun.elapsed();
        (0..6).for_each(|unit| strategy.pre_unit(UnitId(unit), Direction::Forward).unwrap());
        (updated, begun.elapsed() - updated)
    });
    let (updated, waited) = times[0];
    assert!(updated < late / 2 && waited > late / 2, "{updated:?}, then {waited:?}");
}
