//! Compares weights, data and steps with PyTorch. `parity/reference.py` computes the reference.
//! Without a Python with PyTorch 2.4 or newer, nothing is compared; one that `PYTHON` names must
//! have it.

#[path = "parity/layouts.rs"]
mod layouts;

use safetensors::SafeTensors;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, LazyLock};
use unisono::{Communicator, Sum};
use unisono_nn::allocator::Allocator;
use unisono_nn::batch::Batch;
use unisono_nn::model::Model;
use unisono_nn::parameter::{Inventory, ParamGroup, Parameter, Registry};
use unisono_nn::pass::{Pass, Seeds};
use unisono_nn::step_plan::StepPlan;
use unisono_parallel::data_parallel::{
    DataParallel, LocalShard, ParallelKind, ProcessGroups, Settings, new_strategy,
};
use unisono_parallel::optimizer::{AdamW, Optimizer, Sgd, Step};
use unisono_parallel::tensor_parallel::TensorParallel;
use unisono_trainer::checkpoint::SavedBy;
use unisono_trainer::models::{FeedForward, Gpt, GptConfig, Norm, hugging_face};

const CONTEXT: usize = 16;
const SEQUENCES: usize = 8;
const STEPS: usize = 20;
const NORM_MAX: f64 = 1.0;

/// Folder of the reference's files; `None` without PyTorch.
static REFERENCE: LazyLock<Option<PathBuf>> = LazyLock::new(|| {
    let named = std::env::var("PYTHON");
    let python = named.clone().unwrap_or_else(|_| "python3".to_owned());
    if let Err(lack) = torch_of(&python) {
        assert!(named.is_err(), "PYTHON={python}: {lack}");
        // The test harness captures macros' output.
        let _ = writeln!(std::io::stderr(), "SKIPPED: parity with PyTorch: {python}: {lack} (set PYTHON)");
        return None;
    }
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("parity");
    std::fs::create_dir_all(&folder).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/parity/reference.py");
    assert!(Command::new(python).arg(script).arg(&folder).status().unwrap().success());
    Some(folder)
});

/// Checks that a Python has the PyTorch that the reference needs, and returns what it lacks.
fn torch_of(python: &str) -> Result<(), String> {
    let show = "import torch; print(torch.__version__)";
    let output = Command::new(python).args(["-c", show]).output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err("it has no PyTorch".to_owned());
    }
    check_version(String::from_utf8_lossy(&output.stdout).trim())
}

/// Refuses versions of PyTorch before `nn.RMSNorm`, such as 1.13 of Debian 12.
fn check_version(version: &str) -> Result<(), String> {
    let mut numbers = version.split(['.', '+']).map_while(|number| number.parse::<u32>().ok());
    match (numbers.next(), numbers.next()) {
        (Some(major), Some(minor)) if (major, minor) >= (2, 4) => Ok(()),
        _ => Err(format!("PyTorch 2.4 or newer is needed, and it has {version}")),
    }
}

#[test]
fn old_pytorch_is_named_with_the_version_that_is_needed() {
    assert_eq!(["2.4.0", "2.10.0+cpu", "3.0"].map(check_version), [const { Ok(()) }; 3]);
    for old in ["1.13.1", "2.3.1+cpu", "nonsense"] {
        let lack = check_version(old).unwrap_err();
        assert!(lack.contains("2.4 or newer") && lack.contains(old), "{lack}");
    }
}

/// Reads named arrays from a file of the reference.
fn read(name: &str) -> Option<BTreeMap<String, Vec<f32>>> {
    let bytes = std::fs::read(REFERENCE.as_ref()?.join(format!("{name}.safetensors"))).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let number = |bytes: &[u8]| f32::from_bits(u32::from_le_bytes(bytes.try_into().unwrap()));
    let numbers = |data: &[u8]| data.chunks_exact(4).map(number).collect();
    Some(tensors.iter().map(|(name, tensor)| (name.to_owned(), numbers(tensor.data()))).collect())
}

/// Reads the tokens of all steps, CONTEXT + 1 per sequence.
fn tokens(name: &str) -> Option<Vec<u32>> {
    Some(read(&format!("{name}-data"))?["tokens"].iter().map(|token| token.to_bits()).collect())
}

fn config(name: &str) -> GptConfig {
    let gpt2 = GptConfig::new(97, CONTEXT, 32, 4, 2);
    let tie_word_embeddings = ["gpt2", "modern-tied"].contains(&name);
    match name.starts_with("modern") {
        true => GptConfig { norm: Norm::Rms, feed_forward: FeedForward::SwiGlu, tie_word_embeddings, ..gpt2 },
        false => GptConfig { tie_word_embeddings, ..gpt2 },
    }
}

/// Model with a strategy that has the reference's weights.
struct Trainee {
    model: Gpt,
    inventory: Arc<Inventory>,
    strategy: Box<dyn DataParallel>,
    memory: Allocator,
}

fn trainee(name: &str, groups: &[ParamGroup], group: Option<&Communicator>) -> Trainee {
    let (mut registry, memory) = (Registry::default(), Allocator::default());
    let model = Gpt::new(&mut registry, config(name), TensorParallel::default()).unwrap();
    registry.set_groups(groups).unwrap();
    let inventory = Arc::new(registry.finish());
    let settings = Settings { bucket_bytes: 10_000, ..Settings::default() };
    let kind = if group.is_some() { ParallelKind::Zero2 } else { ParallelKind::Replicated };
    let mut strategy =
        new_strategy(kind, &inventory, ProcessGroups::data_only(group.cloned()), &settings, &memory).unwrap();
    let path = REFERENCE.as_ref().unwrap().join(format!("{name}-initial.safetensors"));
    let who = SavedBy { world: group, ..SavedBy::default() };
    hugging_face::load(&path, hugging_face::Layout::Gpt2, who, &mut *strategy, &inventory).unwrap();
    Trainee { model, inventory, strategy, memory }
}

/// Result of a run.
#[derive(Default)]
struct Run {
    losses: Vec<f32>,
    norms: Vec<f64>,
    /// Mean gradients of the first step, and final weights; NaN for shards of another rank.
    gradients: BTreeMap<String, Vec<f32>>,
    weights: BTreeMap<String, Vec<f32>>,
}

/// Optimizer of a run, its learning rate, and its groups of parameters.
#[derive(Clone, Copy)]
struct Recipe<'a>(&'a dyn Optimizer, f32, &'a [ParamGroup]);

/// Runs all steps on this rank's share of the sequences.
fn train(name: &str, recipe: Recipe<'_>, group: Option<&Communicator>) -> Run {
    let Recipe(optimizer, rate, groups) = recipe;
    let (mut trainee, tokens, mut run) =
        (trainee(name, groups, group), tokens(name).unwrap(), Run::default());
    let (rank, ranks) = group.map_or((0, 1), |group| (group.rank(), group.size()));
    for (number, batch) in (1..).zip(tokens.chunks_exact(SEQUENCES * (CONTEXT + 1))) {
        let share = batch.len() / ranks;
        let loss = trainee.forward_and_backward(&batch[rank * share..][..share]);
        let norm = trainee.strategy.grad_norm().unwrap();
        let factor = (NORM_MAX / (norm + 1e-6)).min(1.0) as f32;
        trainee.strategy.optimizer_step(optimizer, &Step { number, lr: rate, grad_scale: factor }).unwrap();
        if number == 1 {
            run.gradients = trainee.first_moments(factor);
        }
        run.losses.push(mean(loss, group));
        run.norms.push(norm);
    }
    run.weights = trainee.kept(|weight, _| weight);
    run
}

fn mean(value: f32, group: Option<&Communicator>) -> f32 {
    let Some(group) = group else { return value };
    let mut sum = [value];
    group.all_reduce(&mut sum, Sum).unwrap();
    sum[0] / group.size() as f32
}

impl Trainee {
    fn forward_and_backward(&mut self, sequences: &[u32]) -> f32 {
        let sequences = sequences.chunks_exact(CONTEXT + 1);
        let inputs: Vec<u32> = sequences.clone().flat_map(|tokens| &tokens[..CONTEXT]).copied().collect();
        let targets: Vec<u32> = sequences.flat_map(|tokens| &tokens[1..]).copied().collect();
        let batch = Batch::tokens(&inputs, &targets, CONTEXT);
        self.strategy.begin_step(&StepPlan::depth_first(self.model.block_count(), 1)).unwrap();
        let mut pass = Pass::new(&mut *self.strategy, &self.memory, Seeds::default(), 1);
        let loss = self.model.forward(&mut pass, &batch).unwrap();
        self.model.backward(&mut pass, 1.0).unwrap();
        self.strategy.finish_backward().unwrap();
        loss
    }

    /// Returns the result of `value_of` for each weight and its first moment.
    fn kept(&mut self, value_of: impl Fn(f32, f32) -> f32) -> BTreeMap<String, Vec<f32>> {
        let nothing = |parameter: &Parameter| (parameter.name.clone(), vec![f32::NAN; parameter.count()]);
        let mut values_by_name: BTreeMap<_, _> = self.inventory.parameters.iter().map(nothing).collect();
        let mut keep = |kept: LocalShard<'_>| {
            let values = values_by_name.get_mut(&self.inventory[kept.parameter].name).unwrap();
            for (place, index) in kept.range.enumerate() {
                values[index] = value_of(kept.weights[place], kept.moments[0][place]);
            }
            Ok(())
        };
        self.strategy.for_each_shard(&mut keep).unwrap();
        values_by_name
    }

    /// Returns the gradients in the first moments of the first step: a tenth, after clipping.
    fn first_moments(&mut self, factor: f32) -> BTreeMap<String, Vec<f32>> {
        self.kept(|_, moment| moment / (0.1 * factor))
    }
}

/// Trains as [`train`] does on two ranks that shard gradients and optimizer state.
fn train_on_two(name: &str, recipe: Recipe<'_>) -> Run {
    let groups = Communicator::local(2).unwrap();
    let [mut first, second] = std::thread::scope(|scope| {
        let run = |group: Communicator| scope.spawn(move || train(name, recipe, Some(&group)));
        let [first, second] = <[_; 2]>::try_from(groups).unwrap().map(run);
        [first, second].map(|rank| rank.join().unwrap())
    });
    assert_eq!((&first.losses, &first.norms), (&second.losses, &second.norms));
    for (shards, others) in [(&mut first.gradients, second.gradients), (&mut first.weights, second.weights)] {
        for (values, others) in shards.values_mut().zip(others.into_values()) {
            let missing = values.iter_mut().zip(others).filter(|(value, _)| value.is_nan());
            missing.for_each(|(value, other)| *value = other);
        }
    }
    first
}

/// Returns the maximum difference relative to the maximum expected value.
fn difference(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let greatest = |values: &mut dyn Iterator<Item = f32>| values.fold(0.0, f32::max);
    assert!(found.iter().all(|value| value.is_finite()), "all there");
    let apart = greatest(&mut found.iter().zip(expected).map(|(left, right)| (left - right).abs()));
    apart / greatest(&mut expected.iter().map(|value| value.abs()))
}

/// Removes the bias of the keys. Softmax is invariant to it, so its gradient is rounding error,
/// which AdamW magnifies.
fn without_key_bias(name: &str, values: &[f32]) -> Vec<f32> {
    let width = values.len() / 3;
    match name.ends_with("c_attn.bias") {
        true => [&values[..width], &values[2 * width..]].concat(),
        false => values.to_vec(),
    }
}

fn compare(what: &str, run: &Run, expected: &BTreeMap<String, Vec<f32>>) {
    let norms: Vec<f32> = run.norms.iter().map(|norm| *norm as f32).collect();
    for (kind, found, most) in [("losses", &run.losses, 2e-6), ("norms", &norms, 1e-5)] {
        for (step, (found, expected)) in found.iter().zip(&expected[kind]).enumerate() {
            let apart = (found - expected).abs() / expected;
            assert!(apart < most, "{what}: {kind} of step {step}: {found}, not {expected}");
        }
        assert_eq!(found.len(), STEPS);
    }
    for (kind, found, most) in [("gradient", &run.gradients, 1e-5), ("weight", &run.weights, 2e-5)] {
        for (name, found) in found {
            let expected = &expected[&format!("{kind}.{name}")];
            let (found, expected) = (without_key_bias(name, found), without_key_bias(name, expected));
            let apart = difference(&found, &expected);
            assert!(apart < most, "{what}: {kind} of {name} is {apart:e} apart");
        }
    }
}

const ADAMW: AdamW = AdamW { betas: (0.9, 0.95), epsilon: 1e-8, weight_decay: 0.1 };
const SGD: Sgd = Sgd { momentum: 0.9, weight_decay: 0.1 };

/// Compares runs of AdamW with the reference of this suffix.
fn compare_adamw(suffix: &str, groups: &[ParamGroup]) {
    let recipe = Recipe(&ADAMW, 1e-3, groups);
    for name in ["gpt2", "modern"] {
        let Some(expected) = read(&format!("{name}-adamw{suffix}")) else { return };
        compare(&format!("{name}{suffix}, 1 rank"), &train(name, recipe, None), &expected);
        compare(&format!("{name}{suffix}, 2 ranks"), &train_on_two(name, recipe), &expected);
    }
}

/// Compares runs of SGD with the reference of this suffix.
fn compare_sgd(suffix: &str, groups: &[ParamGroup]) {
    let recipe = Recipe(&SGD, 0.05, groups);
    for name in ["gpt2", "modern"] {
        let Some(expected) = read(&format!("{name}-sgd{suffix}")) else { return };
        // The first velocity includes weight decay, so it is no gradient.
        let compare = |what: &str, run: Run| {
            compare(what, &Run { gradients: BTreeMap::new(), ..run }, &expected);
        };
        compare(&format!("{name}{suffix}, 1 rank"), train(name, recipe, None));
        compare(&format!("{name}{suffix}, 2 ranks"), train_on_two(name, recipe));
    }
}

#[test]
fn adamw_matches_pytorch() {
    compare_adamw("", &[]);
}

#[test]
fn sgd_momentum_matches_pytorch() {
    compare_sgd("", &[]);
}

#[test]
fn parameter_groups_match_pytorch() {
    let group = |patterns: &[&str], lr_scale, weight_decay| {
        let parameters = patterns.iter().map(|&pattern| pattern.to_owned()).collect();
        ParamGroup { parameters, lr_scale, weight_decay }
    };
    let groups = [group(&["*.bias", "wte"], 0.1, Some(0.05)), group(&["h.1"], 2.0, None)];
    compare_adamw("-groups", &groups);
    compare_sgd("-groups", &groups);
}

#[test]
fn hugging_face_weights_give_same_logits() {
    for name in ["gpt2", "modern"] {
        let (Some(data), Some(tokens)) = (read(&format!("{name}-data")), tokens(name)) else { return };
        let mut trainee = trainee(name, &[], None);
        let sequences = tokens.chunks_exact(CONTEXT + 1).take(SEQUENCES);
        let inputs: Vec<u32> = sequences.flat_map(|tokens| &tokens[..CONTEXT]).copied().collect();
        let mut pass = Pass::new(&mut *trainee.strategy, &trainee.memory, Seeds::default(), 1);
        let logits = trainee.model.logits(&mut pass, &inputs, CONTEXT).unwrap();
        let apart = difference(logits.data(), &data["logits"]);
        assert!(apart < 1e-5, "{name}: logits are {apart:e} apart");
    }
}
