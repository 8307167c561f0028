//! Parity with PyTorch where the model is divided: ZeRO-3, and a pipeline of two stages, with tied
//! and untied heads.

use super::*;
use unisono_nn::model::set_batches;
use unisono_nn::parameter::UnitId;
use unisono_parallel::pipeline::{Order, Program, Schedule, Split, run_program};

const MODELS: [&str; 4] = ["gpt2", "gpt2-untied", "modern", "modern-tied"];
/// Blocks of the models.
const LAYERS: usize = 2;
/// Micro-batches of a step in a pipeline.
const MICRO_BATCHES: usize = 4;

/// Returns a model whose weights are the reference's, with this division of its units.
fn divided(
    name: &str,
    kind: ParallelKind,
    world: &Communicator,
    team: impl FnOnce(&mut Inventory) -> ProcessGroups,
) -> Trainee {
    let (mut registry, memory) = (Registry::default(), Allocator::default());
    let model = Gpt::new(&mut registry, config(name), TensorParallel::default()).unwrap();
    let mut inventory = registry.finish();
    let team = team(&mut inventory);
    let inventory = Arc::new(inventory);
    let settings = Settings { bucket_bytes: 10_000, ..Settings::default() };
    let mut strategy = new_strategy(kind, &inventory, team, &settings, &memory).unwrap();
    let path = REFERENCE.as_ref().unwrap().join(format!("{name}-initial.safetensors"));
    let who = SavedBy { world: Some(world), ..SavedBy::default() };
    hugging_face::load(&path, hugging_face::Layout::Gpt2, who, &mut *strategy, &inventory).unwrap();
    Trainee { model, inventory, strategy, memory }
}

/// Takes all steps. `pass` computes the gradients of a whole batch, and returns its mean loss.
fn steps(
    name: &str,
    mut trainee: Trainee,
    optimizer: &dyn Optimizer,
    rate: f32,
    pass: impl Fn(&mut Trainee, &[u32]) -> f32,
) -> Run {
    let (tokens, mut run) = (tokens(name).unwrap(), Run::default());
    for (number, batch) in (1..).zip(tokens.chunks_exact(SEQUENCES * (CONTEXT + 1))) {
        run.losses.push(pass(&mut trainee, batch));
        let norm = trainee.strategy.grad_norm().unwrap();
        let factor = (NORM_MAX / (norm + 1e-6)).min(1.0) as f32;
        trainee.strategy.optimizer_step(optimizer, &Step { number, lr: rate, grad_scale: factor }).unwrap();
        run.norms.push(norm);
    }
    run.weights = trainee.kept(|weight, _| weight);
    run
}

fn zero3(name: &str, optimizer: &dyn Optimizer, rate: f32, group: &Communicator) -> Run {
    let team = |_: &mut Inventory| ProcessGroups::data_only(Some(group.clone()));
    let trainee = divided(name, ParallelKind::Zero3, group, team);
    steps(name, trainee, optimizer, rate, |trainee, batch| {
        let share = batch.len() / group.size();
        let loss = trainee.forward_and_backward(&batch[group.rank() * share..][..share]);
        mean(loss, Some(group))
    })
}

/// Returns the order of work of two stages, and the units of each.
fn two_stages() -> (Schedule, Vec<std::ops::Range<usize>>) {
    let schedule = Order::find("1f1b").unwrap().schedule(2, MICRO_BATCHES, 1).unwrap();
    let units = Split::Even.divide(LAYERS, schedule.stages()).unwrap();
    (schedule, units)
}

fn stage(name: &str, optimizer: &dyn Optimizer, rate: f32, stages: &Communicator) -> Run {
    let (schedule, units) = two_stages();
    let program = Program::new(&schedule, stages.rank(), &units);
    let trainee = divided(name, ParallelKind::Replicated, stages, |inventory| {
        let stage_of = |unit: UnitId| units.iter().position(|units| units.contains(&unit.0)).unwrap();
        inventory.keep_units(|unit| schedule.location(stage_of(unit)).0 == stages.rank());
        let shares = inventory.parameters.iter().any(|parameter| parameter.residency.is_tied());
        ProcessGroups::default().with_pipeline(Some(stages), shares).unwrap()
    });
    steps(name, trainee, optimizer, rate, |trainee, batch| trainee.run_stage(batch, &program, stages))
}

impl Trainee {
    /// Runs this stage's part of a step. Returns the mean loss, which the last stage knows.
    fn run_stage(&mut self, sequences: &[u32], program: &Program, stages: &Communicator) -> f32 {
        let micro_batch = |sequences: &[u32]| {
            let rows = sequences.chunks_exact(CONTEXT + 1);
            let inputs: Vec<u32> = rows.clone().flat_map(|row| &row[..CONTEXT]).copied().collect();
            let targets: Vec<u32> = rows.flat_map(|row| &row[1..]).copied().collect();
            Batch::tokens(&inputs, &targets, CONTEXT)
        };
        let batches = sequences.chunks_exact(sequences.len() / MICRO_BATCHES).map(micro_batch).collect();
        let seeds = [Seeds::default(); MICRO_BATCHES];
        let mut pass = Pass::with_micro_batches(&mut *self.strategy, &self.memory, &seeds, 1);
        set_batches(&self.model, &mut pass, batches).unwrap();
        pass.begin_step(&program.plan).unwrap();
        let scale = 1.0 / MICRO_BATCHES as f32;
        let losses = run_program(&self.model, &mut pass, program, stages, scale).unwrap();
        self.strategy.finish_backward().unwrap();
        let mut sum = [losses.iter().sum::<f32>() * scale];
        stages.all_reduce(&mut sum, Sum).unwrap();
        sum[0]
    }
}

/// Runs `rank` on two ranks, and joins the weights that each keeps.
fn on_two(rank: impl Fn(&Communicator) -> Run + Sync) -> Run {
    let groups = Communicator::local(2).unwrap();
    let runs: Vec<Run> = std::thread::scope(|scope| {
        let ranks: Vec<_> = groups.iter().map(|group| scope.spawn(|| rank(group))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    let [mut first, second] = <[Run; 2]>::try_from(runs).unwrap_or_else(|_| panic!("two"));
    assert_eq!((&first.losses, &first.norms), (&second.losses, &second.norms));
    for (values, others) in first.weights.values_mut().zip(second.weights.into_values()) {
        for (value, other) in values.iter_mut().zip(others) {
            assert!(value.is_nan() || other.is_nan() || *value == other, "copies are equal");
            *value = if value.is_nan() { other } else { *value };
        }
    }
    first
}

/// Compares runs of all models with this optimizer's reference.
fn compare_all(kind: &str, optimizer: &(dyn Optimizer + Sync), rate: f32, most: f32) {
    for name in MODELS {
        let Some(expected) = read(&format!("{name}-{kind}")) else { return };
        let run = on_two(|group| zero3(name, optimizer, rate, group));
        compare_run(&format!("{name}, {kind}, ZeRO-3"), run, &expected, most);
        let run = on_two(|stages| stage(name, optimizer, rate, stages));
        compare_run(&format!("{name}, {kind}, two stages"), run, &expected, most);
    }
}

/// Compares losses and norms as [`compare`] does, and weights up to a relative difference of
/// `most`.
fn compare_run(what: &str, mut run: Run, expected: &BTreeMap<String, Vec<f32>>, most: f32) {
    for (name, found) in std::mem::take(&mut run.weights) {
        let expected = without_key_bias(&name, &expected[&format!("weight.{name}")]);
        let apart = difference(&without_key_bias(&name, &found), &expected);
        assert!(apart < most, "{what}: weight of {name} is {apart:e} apart");
    }
    compare(what, &run, expected);
}

#[test]
fn zero3_and_stages_match_pytorch_with_adamw() {
    let optimizer = AdamW { betas: (0.9, 0.95), epsilon: 1e-8, weight_decay: 0.1 };
    // AdamW divides tiny gradients by their size, and so enlarges their rounding.
    compare_all("adamw", &optimizer, 1e-3, 2e-4);
}

#[test]
fn zero3_and_stages_match_pytorch_with_sgd() {
    compare_all("sgd", &Sgd { momentum: 0.9, weight_decay: 0.1 }, 0.05, 2e-5);
}
