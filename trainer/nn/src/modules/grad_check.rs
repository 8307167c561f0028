//! Checks of modules against difference quotients of a loss, and against a formula in f64.

use crate::allocator::Allocator;
use crate::modules::Module;
use crate::parameter::{Init, ParameterId, Registry};
use crate::pass::{Pass, Seeds};
use crate::strategy::{LocalStrategy, Strategy};
use crate::tensor::Tensor;

/// Module with weights, an input, and a loss: a weighted sum of its outputs.
pub struct GradCheck<M> {
    module: M,
    strategy: std::cell::RefCell<LocalStrategy>,
    memory: Allocator,
    input: Vec<f32>,
    columns: usize,
    sequence: usize,
}

/// Returns `count` numbers between -1 and 1 for tests. Equal arguments give equal numbers.
pub fn random_values(seed: u64, count: usize) -> Vec<f32> {
    let mut numbers = vec![0.0; count];
    let name = "numbers of a test";
    crate::parameter::Parameter::new(name, &[count], Init::Uniform(1.0)).initialize(
        seed,
        0..count,
        &mut numbers,
    );
    numbers
}

/// Converts numbers to f64.
pub fn to_f64(numbers: &[f32]) -> Vec<f64> {
    numbers.iter().copied().map(f64::from).collect()
}

impl<M: Module> GradCheck<M> {
    /// Creates the module with random weights, and an input of `rows` × `columns`: one sequence.
    /// This method and the others panic if the module fails, and checks panic if they find errors.
    pub fn new(make: impl FnOnce(&mut Registry) -> M, rows: usize, columns: usize) -> Self {
        let (mut registry, memory) = (Registry::default(), Allocator::default());
        let (_, module) = registry.unit("m", make);
        let mut strategy = LocalStrategy::new(registry.finish(), &memory, 1);
        for id in (0..strategy.inventory().parameters.len()).map(ParameterId) {
            let weights = strategy.weights_mut(id);
            weights.copy_from_slice(&random_values(id.0 as u64, weights.len()));
        }
        let strategy = strategy.into();
        Self { module, strategy, memory, input: random_values(99, rows * columns), columns, sequence: rows }
    }

    /// Sets the number of rows per sequence.
    pub fn sequence(mut self, rows: usize) -> Self {
        self.sequence = rows;
        self
    }

    /// Returns the output, and the gradient of the loss with respect to the input.
    pub fn forward_and_backward(&self) -> (Vec<f32>, Vec<f32>) {
        self.strategy.borrow_mut().zero_gradients();
        self.repeat_pass()
    }

    /// Runs the pass again and adds to the existing gradients.
    fn repeat_pass(&self) -> (Vec<f32>, Vec<f32>) {
        let mut strategy = self.strategy.borrow_mut();
        let mut pass = self.pass(&mut strategy);
        let output = self.module.forward(&mut pass, self.tensor(&self.input)).expect("forward");
        let slope =
            Tensor::from_slice(&self.memory, output.rows(), output.columns(), &factors(output.data().len()));
        let gradient = self.module.backward(&mut pass, slope).expect("backward");
        assert!(pass.is_complete(), "all that was saved is taken back");
        (output.data().to_vec(), gradient.data().to_vec())
    }

    /// Returns the gradients of all parameters after [`Self::forward_and_backward`].
    pub fn weight_gradients(&self) -> Vec<f32> {
        self.strategy.borrow().gradients().to_vec()
    }

    /// Asserts that every gradient equals the difference quotient of the loss, up to `tolerance`
    /// times the largest of its kind.
    pub fn check_gradients(&self, tolerance: f64) {
        let (_, of_input) = self.forward_and_backward();
        let quotient = |index| self.quotient(|step| self.loss(&moved(&self.input, index, step)));
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
            let quotient = |index| self.quotient(|step| loss(&moved(&weights, index, step)));
            agree(&name, &analytic, quotient, tolerance);
            // The loss has set moved weights, so the right ones are set back before the next.
            loss(&weights);
        }
        self.check_accumulation(tolerance as f32);
    }

    fn check_accumulation(&self, tolerance: f32) {
        self.forward_and_backward();
        let once = self.weight_gradients();
        self.repeat_pass();
        for (once, twice) in once.iter().zip(self.weight_gradients()) {
            assert!((twice - 2.0 * once).abs() <= tolerance * once.abs(), "{once} twice is {twice}");
        }
    }

    /// Asserts that `formula` gives each output row, from its input row and the weights.
    pub fn check_values(&self, tolerance: f64, formula: impl Fn(&[f64], &[Vec<f64>]) -> Vec<f64>) {
        let input = to_f64(&self.input);
        let weights = self.weights();
        let rows = input.chunks_exact(self.columns).flat_map(|row| formula(row, &weights));
        self.output_is(tolerance, &rows.collect::<Vec<_>>());
    }

    /// Asserts that `formula` gives the output, from the whole input and the weights.
    pub fn check_all_rows(&self, tolerance: f64, formula: impl FnOnce(&[f64], &[Vec<f64>]) -> Vec<f64>) {
        self.output_is(tolerance, &formula(&to_f64(&self.input), &self.weights()));
    }

    fn output_is(&self, tolerance: f64, expected: &[f64]) {
        let (found, _) = self.forward_and_backward();
        assert_eq!(found.len(), expected.len());
        for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
            let error = (f64::from(*found) - expected).abs();
            assert!(error < tolerance * (1.0 + expected.abs()), "output {index} is {found}, not {expected}");
        }
    }

    fn weights(&self) -> Vec<Vec<f64>> {
        let strategy = self.strategy.borrow();
        let count = strategy.inventory().parameters.len();
        (0..count).map(|id| to_f64(strategy.weights(ParameterId(id)))).collect()
    }

    fn loss(&self, input: &[f32]) -> f64 {
        let mut strategy = self.strategy.borrow_mut();
        let mut pass = self.pass(&mut strategy);
        let output = self.module.forward(&mut pass, self.tensor(input)).expect("forward");
        let factors = factors(output.data().len());
        output.data().iter().zip(&factors).map(|(y, factor)| f64::from(*y) * f64::from(*factor)).sum()
    }

    /// Returns the slope at 0 from five points.
    fn quotient(&self, loss: impl Fn(f32) -> f64) -> f64 {
        const STEP: f32 = 1.0 / 32.0;
        let difference = |step: f32| loss(step) - loss(-step);
        (8.0 * difference(STEP) - difference(2.0 * STEP)) / (12.0 * f64::from(STEP))
    }

    fn pass<'a>(&self, strategy: &'a mut LocalStrategy) -> Pass<'a> {
        let mut pass = Pass::new(strategy, &self.memory, Seeds { shared: 5, per_rank: 6 }, 1);
        pass.set_sequence(self.sequence);
        pass
    }

    fn tensor(&self, input: &[f32]) -> Tensor {
        Tensor::from_slice(&self.memory, input.len() / self.columns, self.columns, input)
    }
}

/// Returns the weights of the outputs in the loss.
fn factors(count: usize) -> Vec<f32> {
    random_values(77, count)
}

fn moved(values: &[f32], index: usize, step: f32) -> Vec<f32> {
    let mut values = values.to_vec();
    values[index] += step;
    values
}

fn agree(name: &str, analytic: &[f32], quotient: impl Fn(usize) -> f64, tolerance: f64) {
    let scale = analytic.iter().fold(0.0f64, |scale, value| scale.max(f64::from(value.abs())));
    assert!(scale > 0.0, "{name} has a gradient");
    for (index, value) in analytic.iter().enumerate() {
        let (value, expected) = (f64::from(*value), quotient(index));
        let close = (value - expected).abs() < tolerance * scale;
        assert!(close, "gradient {index} of {name} is {value}, not {expected}");
    }
}
