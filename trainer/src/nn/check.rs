//! What every module is checked against: differences of a loss, and a formula in f64.

use super::Module;
use crate::memory::Memory;
use crate::parameter::{Init, ParameterId, Registry};
use crate::pass::{Pass, Seeds};
use crate::strategy::{Local, Strategy};
use crate::tensor::Tensor;

/// A module with weights, an input, and a loss: the sum of its outputs, each times a number.
pub(crate) struct Check<M> {
    module: M,
    strategy: std::cell::RefCell<Local>,
    memory: Memory,
    input: Vec<f32>,
    columns: usize,
    sequence: usize,
}

/// Numbers between -1 and 1.
pub(crate) fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut numbers = vec![0.0; count];
    let name = "numbers of a test";
    crate::parameter::Parameter::new(name, &[count], Init::Uniform(1.0)).initialise(
        seed,
        0..count,
        &mut numbers,
    );
    numbers
}

/// In f64.
pub(crate) fn wide(numbers: &[f32]) -> Vec<f64> {
    numbers.iter().copied().map(f64::from).collect()
}

impl<M: Module> Check<M> {
    /// The module that `make` makes, with random weights, and an input of `rows` × `columns`: one sequence.
    pub(crate) fn new(make: impl FnOnce(&mut Registry) -> M, rows: usize, columns: usize) -> Self {
        let (mut registry, memory) = (Registry::default(), Memory::default());
        let (_, module) = registry.unit("m", make);
        let mut strategy = Local::new(registry.finish(), &memory, 1);
        for id in (0..strategy.inventory().parameters.len()).map(ParameterId) {
            let weights = strategy.weights_mut(id);
            weights.copy_from_slice(&numbers(id.0 as u64, weights.len()));
        }
        let strategy = strategy.into();
        Self { module, strategy, memory, input: numbers(99, rows * columns), columns, sequence: rows }
    }

    /// Sequences of so many rows.
    pub(crate) fn sequence(mut self, rows: usize) -> Self {
        self.sequence = rows;
        self
    }

    /// Input and output by `forward` and, of the loss, the gradient with respect to the input.
    pub(crate) fn both_ways(&self) -> (Vec<f32>, Vec<f32>) {
        self.strategy.borrow_mut().zero_gradients();
        self.once_more()
    }

    /// [`Self::both_ways`], with what is there already added to.
    fn once_more(&self) -> (Vec<f32>, Vec<f32>) {
        let mut strategy = self.strategy.borrow_mut();
        let mut pass = self.pass(&mut strategy);
        let output = self.module.forward(&mut pass, self.tensor(&self.input)).expect("forward");
        let slope =
            Tensor::from(&self.memory, output.rows(), output.columns(), &factors(output.data().len()));
        let gradient = self.module.backward(&mut pass, slope).expect("backward");
        assert!(pass.is_complete(), "all that was saved is taken back");
        (output.data().to_vec(), gradient.data().to_vec())
    }

    /// Gradients of all parameters, after [`Self::both_ways`].
    pub(crate) fn weight_gradients(&self) -> Vec<f32> {
        self.strategy.borrow().gradients().to_vec()
    }

    /// Every gradient is the difference quotient of the loss, up to `tolerance` times the greatest of its kind.
    pub(crate) fn gradients(&self, tolerance: f64) {
        let (_, of_input) = self.both_ways();
        let quotient = |at| self.quotient(|step| self.loss(&moved(&self.input, at, step)));
        agree("the input", &of_input, quotient, tolerance);
        let count = self.strategy.borrow().inventory().parameters.len();
        for id in (0..count).map(ParameterId) {
            let analytic = self.strategy.borrow().gradient_of(id).to_vec();
            let weights = self.strategy.borrow().weights(id).to_vec();
            let name = self.strategy.borrow().inventory()[id].name.clone();
            let loss = |weights: &[f32]| {
                self.strategy.borrow_mut().weights_mut(id).copy_from_slice(weights);
                self.loss(&self.input)
            };
            let quotient = |at| self.quotient(|step| loss(&moved(&weights, at, step)));
            agree(&name, &analytic, quotient, tolerance);
            loss(&weights);
        }
        self.gradients_add_up(tolerance as f32);
    }

    fn gradients_add_up(&self, tolerance: f32) {
        self.both_ways();
        let once = self.weight_gradients();
        self.once_more();
        for (once, twice) in once.iter().zip(self.weight_gradients()) {
            assert!((twice - 2.0 * once).abs() <= tolerance * once.abs(), "{once} twice is {twice}");
        }
    }

    /// Each row of the output is what `formula` makes of that of the input and the weights.
    pub(crate) fn values(&self, tolerance: f64, formula: impl Fn(&[f64], &[Vec<f64>]) -> Vec<f64>) {
        let input = wide(&self.input);
        let weights = self.weights();
        let rows = input.chunks_exact(self.columns).flat_map(|row| formula(row, &weights));
        self.output_is(tolerance, &rows.collect::<Vec<_>>());
    }

    /// The output is what `formula` makes of the whole input and the weights.
    pub(crate) fn whole(&self, tolerance: f64, formula: impl FnOnce(&[f64], &[Vec<f64>]) -> Vec<f64>) {
        self.output_is(tolerance, &formula(&wide(&self.input), &self.weights()));
    }

    fn output_is(&self, tolerance: f64, expected: &[f64]) {
        let (found, _) = self.both_ways();
        assert_eq!(found.len(), expected.len());
        for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
            let error = (f64::from(*found) - expected).abs();
            assert!(error < tolerance * (1.0 + expected.abs()), "output {at} is {found}, not {expected}");
        }
    }

    fn weights(&self) -> Vec<Vec<f64>> {
        let strategy = self.strategy.borrow();
        let count = strategy.inventory().parameters.len();
        (0..count).map(|id| wide(strategy.weights(ParameterId(id)))).collect()
    }

    fn loss(&self, input: &[f32]) -> f64 {
        let mut strategy = self.strategy.borrow_mut();
        let mut pass = self.pass(&mut strategy);
        let output = self.module.forward(&mut pass, self.tensor(input)).expect("forward");
        let factors = factors(output.data().len());
        output.data().iter().zip(&factors).map(|(y, factor)| f64::from(*y) * f64::from(*factor)).sum()
    }

    /// The slope at 0, by five points.
    fn quotient(&self, loss: impl Fn(f32) -> f64) -> f64 {
        const STEP: f32 = 1.0 / 32.0;
        let difference = |step: f32| loss(step) - loss(-step);
        (8.0 * difference(STEP) - difference(2.0 * STEP)) / (12.0 * f64::from(STEP))
    }

    fn pass<'a>(&self, strategy: &'a mut Local) -> Pass<'a> {
        let mut pass = Pass::new(strategy, &self.memory, Seeds { shared: 5, split: 6 }, 1);
        pass.set_sequence(self.sequence);
        pass
    }

    fn tensor(&self, input: &[f32]) -> Tensor {
        Tensor::from(&self.memory, input.len() / self.columns, self.columns, input)
    }
}

/// What the loss takes the outputs times.
fn factors(count: usize) -> Vec<f32> {
    numbers(77, count)
}

fn moved(values: &[f32], at: usize, step: f32) -> Vec<f32> {
    let mut values = values.to_vec();
    values[at] += step;
    values
}

fn agree(name: &str, analytic: &[f32], quotient: impl Fn(usize) -> f64, tolerance: f64) {
    let scale = analytic.iter().fold(0.0f64, |scale, value| scale.max(f64::from(value.abs())));
    assert!(scale > 0.0, "{name} has a gradient");
    for (at, value) in analytic.iter().enumerate() {
        let (value, expected) = (f64::from(*value), quotient(at));
        let close = (value - expected).abs() < tolerance * scale;
        assert!(close, "gradient {at} of {name} is {value}, not {expected}");
    }
}
