//! Tests of models against difference quotients, and of their events.

mod generation;
mod golden;
mod passes;

use super::*;
use std::collections::HashSet;
use std::sync::LazyLock;
use unisono_nn::allocator::Allocator;
use unisono_nn::batch::Batch;
use unisono_nn::error::Result;
use unisono_nn::model::*;
use unisono_nn::modules::{ActivationCheckpoint, random_values};
use unisono_nn::parameter::{Init, Inventory, ParameterId, Registry, UnitId};
use unisono_nn::pass::{Pass, Seeds};
use unisono_nn::step_plan::Direction;
use unisono_nn::strategy::{LocalStrategy, Strategy};
use unisono_nn::testing::BalanceLoss;
use unisono_parallel::tensor_parallel::TensorParallel;

/// Model with its parameters.
struct Fixture<M> {
    model: M,
    strategy: LocalStrategy,
    memory: Allocator,
}

const INPUTS: [u32; 12] = [1, 2, 3, 4, 5, 6, 0, 2, 4, 6, 1, 3];
const TARGETS: [u32; 12] = [2, 3, 4, 5, 6, 0, 2, 4, 6, 1, 3, 5];
static TOKENS: LazyLock<Batch> = LazyLock::new(|| Batch::tokens(&INPUTS, &TARGETS, 6));

impl<M: Model> Fixture<M> {
    fn new(make: impl FnOnce(&mut Registry) -> M) -> Self {
        let (mut registry, memory) = (Registry::default(), Allocator::default());
        let model = make(&mut registry);
        let strategy = LocalStrategy::new(registry.finish(), &memory, 3);
        Self { model, strategy, memory }
    }

    fn forward(&mut self, batch: &Batch) -> f32 {
        let mut pass = Pass::new(&mut self.strategy, &self.memory, Seeds { shared: 1, per_rank: 2 }, 1);
        let loss = self.model.forward(&mut pass, batch).expect("forward");
        loss + pass.added_mut().take_sums().total as f32
    }

    fn forward_and_backward(&mut self, batch: &Batch) -> f32 {
        self.strategy.zero_gradients();
        let mut pass = Pass::new(&mut self.strategy, &self.memory, Seeds { shared: 1, per_rank: 2 }, 1);
        let loss = self.model.forward(&mut pass, batch).expect("forward");
        self.model.backward(&mut pass, 1.0).expect("backward");
        assert!(pass.is_complete());
        loss
    }

    /// Sets weights larger than initial ones, so that every gradient is well above rounding errors.
    fn rough(mut self) -> Self {
        for id in (0..self.strategy.inventory().parameters.len()).map(ParameterId) {
            let weights = self.strategy.weights_mut(id);
            weights.copy_from_slice(&random_values(id.0 as u64, weights.len()));
        }
        self
    }

    /// Checks that the slope of the loss along a random direction in each parameter equals the
    /// product of direction and gradient.
    fn check(&mut self, batch: &Batch) {
        self.forward_and_backward(batch);
        let gradients: Vec<Vec<f32>> = self.ids().map(|id| self.strategy.gradient_of(id).to_vec()).collect();
        for (id, gradient) in self.ids().zip(gradients) {
            let direction = random_values(1000, gradient.len());
            let slope: f64 = gradient.iter().zip(&direction).map(|(g, d)| f64::from(g * d)).sum();
            let length = gradient.iter().map(|g| f64::from(g * g)).sum::<f64>().sqrt();
            let step = 1.0 / 256.0;
            let difference = |rig: &mut Self, step| {
                rig.along(id, &direction, step, batch) - rig.along(id, &direction, -step, batch)
            };
            let quotient =
                (8.0 * difference(self, step) - difference(self, 2.0 * step)) / (12.0 * f64::from(step));
            let name = &self.strategy.inventory()[id].name;
            assert!(length > 0.0, "{name} has a gradient");
            assert!(
                (slope - quotient).abs() < 1e-3 * length + 3e-4,
                "{name}: {slope}, not {quotient}; length {length}"
            );
        }
    }

    fn ids(&self) -> impl Iterator<Item = ParameterId> + use<M> {
        (0..self.strategy.inventory().parameters.len()).map(ParameterId)
    }

    fn along(&mut self, id: ParameterId, direction: &[f32], step: f32, batch: &Batch) -> f64 {
        let kept = self.strategy.weights(id).to_vec();
        let weights = self.strategy.weights_mut(id);
        weights.iter_mut().zip(direction).for_each(|(weight, along)| *weight += step * along);
        let loss = self.forward(batch);
        self.strategy.weights_mut(id).copy_from_slice(&kept);
        f64::from(loss)
    }
}

fn small() -> GptConfig {
    GptConfig::new(7, 8, 8, 2, 2)
}

fn gpt(config: GptConfig) -> Fixture<Gpt> {
    Fixture::new(|registry| Gpt::new(registry, config, TensorParallel::default()).expect("legal"))
}

#[test]
fn gpt_variants_have_correct_gradients() {
    gpt(small()).rough().check(&TOKENS);
    gpt(GptConfig { tie_word_embeddings: false, ..small() }).rough().check(&TOKENS);
    let modern = GptConfig { norm: Norm::Rms, feed_forward: FeedForward::SwiGlu, ..small() };
    gpt(modern).rough().check(&TOKENS);
    let llama = GptConfig { kv_heads: 1, ffn_width: Some(10), ..GptConfig::llama(7, 8, 8, 2, 2) };
    gpt(llama.clone()).rough().check(&TOKENS);
    gpt(GptConfig { qkv_bias: true, ..llama.clone() }).rough().check(&TOKENS);
    gpt(GptConfig { qk_norm: true, head_dim: Some(8), ..llama.clone() }).rough().check(&TOKENS);
    gpt(GptConfig { head_dim: Some(6), kv_heads: 3, heads: 3, ..llama.clone() }).rough().check(&TOKENS);
    gpt(GptConfig { bias: true, kv_heads: 2, ..llama }).rough().check(&TOKENS);
    gpt(GptConfig { dropout: 0.2, ignore_index: Some(6), ..small() }).rough().check(&TOKENS);
}

#[test]
fn added_losses_have_correct_gradients() {
    for is_checkpointed in [false, true] {
        let mut rig = gpt(small()).rough();
        for number in 0..2 {
            rig.model.wrap_block(number, |module| {
                let balance = BalanceLoss { module, slope: 0.3 };
                if is_checkpointed { Box::new(ActivationCheckpoint(balance)) } else { Box::new(balance) }
            });
        }
        rig.check(&TOKENS);
        let mut pass = Pass::new(&mut rig.strategy, &rig.memory, Seeds::default(), 1);
        rig.model.forward(&mut pass, &TOKENS).unwrap();
        rig.model.backward(&mut pass, 1.0).unwrap();
        // Recomputation in backward counts nothing again.
        let sums = pass.added_mut().take_sums();
        assert!((sums.total - 0.3 * sums.losses["balance"]).abs() < 1e-6 && sums.total > 0.0);
        assert_eq!(sums.metrics["numbers"], (2.0 * 12.0 * 8.0, 2));
    }
}

#[test]
fn activation_checkpointing_is_exact_and_keeps_less() {
    let run = |checkpoint| {
        let mut rig =
            gpt(GptConfig { activation_checkpointing: checkpoint, dropout: 0.1, layers: 6, ..small() });
        let loss = rig.forward_and_backward(&TOKENS);
        let peak = rig.memory.usage(unisono_nn::allocator::AllocClass::Activations).peak;
        (loss, rig.strategy.gradients().to_vec(), peak)
    };
    let (plain, less) = (run(false), run(true));
    assert_eq!((plain.0, plain.1), (less.0, less.1));
    assert!(2 * less.2 < plain.2, "{} bytes, {} without", less.2, plain.2);
}

#[test]
fn second_step_reuses_memory_and_is_equal() {
    let mut rig = gpt(small());
    let first = (rig.forward_and_backward(&TOKENS), rig.strategy.gradients().to_vec());
    let made = rig.memory.fresh_allocations();
    assert_eq!(first, (rig.forward_and_backward(&TOKENS), rig.strategy.gradients().to_vec()));
    assert_eq!(rig.memory.fresh_allocations(), made);
    assert_eq!(rig.memory.usage(unisono_nn::allocator::AllocClass::Activations).current, 0);
}

#[test]
fn gpt2_small_has_expected_names_and_124m_parameters() {
    let mut registry = Registry::default();
    Gpt::new(&mut registry, GptConfig::new(50257, 1024, 768, 12, 12), TensorParallel::default())
        .expect("legal");
    let inventory = registry.finish();
    assert_eq!(inventory.count(), 124_439_808);
    assert_eq!(inventory.units.len(), 14);
    let of_block =
        inventory.units[3].parameters.clone().map(|index| inventory.parameters[index].name.as_str());
    let expected = [
        "ln_1.weight",
        "ln_1.bias",
        "attn.c_attn.weight",
        "attn.c_attn.bias",
        "attn.c_proj.weight",
        "attn.c_proj.bias",
        "ln_2.weight",
        "ln_2.bias",
        "mlp.c_fc.weight",
        "mlp.c_fc.bias",
        "mlp.c_proj.weight",
        "mlp.c_proj.bias",
    ];
    assert!(of_block.eq(expected.map(|name| format!("h.2.{name}")).iter().map(String::as_str)));
    for name in ["wte.weight", "wpe.weight", "ln_f.weight", "ln_f.bias"] {
        assert!(inventory.find(name).is_some(), "{name}");
    }
    assert_eq!(inventory.units[13].shared, [ParameterId(0)]);
    let start = |name| inventory[inventory.find(name).expect("there")].init;
    assert_eq!(start("h.11.mlp.c_fc.weight"), Init::Normal(0.02));
    assert_eq!(start("h.11.mlp.c_proj.weight"), Init::Normal(0.02 / 24.0f32.sqrt()));
    assert_eq!(start("h.11.attn.c_proj.weight"), Init::Normal(0.02 / 24.0f32.sqrt()));
}

/// Records events, and rejects uses of weights outside of their unit.
struct RecordingStrategy {
    local: LocalStrategy,
    gathered: HashSet<UnitId>,
    events: Vec<Event>,
}

#[derive(Debug, PartialEq)]
enum Event {
    PreUnit(UnitId, Direction),
    PostUnit(UnitId, Direction),
    GradReady(ParameterId),
}

impl RecordingStrategy {
    fn assert_gathered(&self, id: ParameterId) {
        let inventory = self.local.inventory();
        let owner = inventory.unit_of(id);
        let needs = |unit: &UnitId| *unit == owner || inventory[*unit].shared.contains(&id);
        assert!(self.gathered.iter().any(needs), "{} outside of its unit", inventory[id].name);
    }
}

impl Strategy for RecordingStrategy {
    fn pre_unit(&mut self, unit: UnitId, way: Direction) -> Result<()> {
        self.events.push(Event::PreUnit(unit, way));
        assert!(self.gathered.insert(unit));
        Ok(())
    }

    fn post_unit(&mut self, unit: UnitId, way: Direction) -> Result<()> {
        self.events.push(Event::PostUnit(unit, way));
        assert!(self.gathered.remove(&unit));
        Ok(())
    }

    fn grad_ready(&mut self, id: ParameterId) -> Result<()> {
        self.events.push(Event::GradReady(id));
        Ok(())
    }

    fn weights(&self, id: ParameterId) -> &[f32] {
        self.assert_gathered(id);
        self.local.weights(id)
    }

    fn weights_and_gradient(&mut self, id: ParameterId) -> Option<(&[f32], &mut [f32])> {
        self.assert_gathered(id);
        self.local.weights_and_gradient(id)
    }
}

/// Returns the events that a model must announce: units in order, then units and their parameters
/// in reverse.
fn expected(inventory: &Inventory, tied: Option<ParameterId>) -> Vec<Event> {
    let units = || (0..inventory.units.len()).map(UnitId);
    let mut events: Vec<Event> = units()
        .flat_map(|unit| {
            [Event::PreUnit(unit, Direction::Forward), Event::PostUnit(unit, Direction::Forward)]
        })
        .collect();
    for unit in units().rev() {
        events.push(Event::PreUnit(unit, Direction::Backward));
        events.extend(tied.filter(|_| !inventory[unit].shared.is_empty()).map(Event::GradReady));
        events.extend(inventory[unit].parameters.clone().rev().map(|id| Event::GradReady(ParameterId(id))));
        events.push(Event::PostUnit(unit, Direction::Backward));
    }
    events
}

#[test]
fn hooks_are_called_in_order() {
    let others = GptConfig {
        tie_word_embeddings: false,
        activation_checkpointing: true,
        cross_entropy_splits: 3,
        ..small()
    };
    for (config, micro_batches) in [(small(), 1), (others.clone(), 1), (small(), 3), (others, 2)] {
        let rig = gpt(config.clone());
        let mut watch =
            RecordingStrategy { local: rig.strategy, gathered: HashSet::new(), events: Vec::new() };
        let seeds = vec![Seeds::default(); micro_batches];
        let mut pass = Pass::with_micro_batches(&mut watch, &rig.memory, &seeds, 1);
        rig.model.forward_each(&mut pass, &vec![TOKENS.clone(); micro_batches]).expect("forward");
        rig.model.backward(&mut pass, 1.0).expect("backward");
        let tied =
            config.tie_word_embeddings.then(|| watch.local.inventory().find("wte.weight").expect("there"));
        assert_eq!(watch.events, expected(watch.local.inventory(), tied));
    }
}

#[test]
fn gpt_learns_to_count() {
    let mut rig = gpt(small());
    let numbers: Vec<u32> = (0..64).map(|position| position % 7).collect();
    let batch = Batch::tokens(&numbers[..56], &numbers[1..57], 8);
    let first = rig.forward_and_backward(&batch);
    for _ in 0..150 {
        rig.forward_and_backward(&batch);
        rig.strategy.sgd_step(0.5);
    }
    let last = rig.forward(&batch);
    assert!(first > 1.9 && last < 0.05, "from {first} to {last}");
    let Fixture { model, mut strategy, memory } = rig;
    let mut pass = Pass::new(&mut strategy, &memory, Seeds::default(), 1);
    let mut say =
        |sampling| model.generate(&mut pass, &[4, 5], 12, sampling, &mut |_| Ok(true)).expect("tokens");
    assert_eq!(say(Sampling::GREEDY), [6, 0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3]);
    let hot = |seed| Sampling { temperature: 20.0, seed, ..Sampling::GREEDY };
    let (left, right) = (say(hot(1)), say(hot(2)));
    assert!(left != right && left == say(hot(1)), "{left:?} {right:?}");
    assert!(pass.is_complete() && pass.keeps(), "a pass that can go on training");
}

#[test]
fn mismatched_batches_are_rejected() {
    let mut rig = gpt(small());
    let mut pass = Pass::new(&mut rig.strategy, &rig.memory, Seeds::default(), 1);
    let mut message = |batch| rig.model.forward(&mut pass, &batch).expect_err("illegal").to_string();
    let long = Batch::tokens(&INPUTS, &TARGETS, 12);
    assert_eq!(message(long), "12 tokens in sequences of 12 for a language model of 8 tokens of context");
    let unknown = Batch::tokens(&[7; 6], &[0; 6], 6);
    assert_eq!(message(unknown), "index 7 into a table of 7");
    let other = message(Batch::new([0.0f64; 4]));
    assert!(other.starts_with("a batch of type [f64; 4] for a model of ") && other.ends_with("TokenBatch"));
    assert!(
        Gpt::new(&mut Registry::default(), GptConfig { heads: 3, ..small() }, TensorParallel::default())
            .is_err()
    );
}
