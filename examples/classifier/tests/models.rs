//! Gradients of classifiers, against difference quotients of the loss.

use unisono_classifier::{Classifier, Samples};
use unisono_nn::allocator::Allocator;
use unisono_nn::batch::Batch;
use unisono_nn::model::Model;
use unisono_nn::modules::random_values;
use unisono_nn::parameter::{ParameterId, Registry};
use unisono_nn::pass::{Pass, Seeds};
use unisono_nn::strategy::{LocalStrategy, Strategy};

/// Classifier with its parameters on one rank.
struct Fixture {
    model: Classifier,
    strategy: LocalStrategy,
    memory: Allocator,
}

impl Fixture {
    fn new(make: impl FnOnce(&mut Registry) -> Classifier) -> Self {
        let (mut registry, memory) = (Registry::default(), Allocator::default());
        let model = make(&mut registry);
        let strategy = LocalStrategy::new(registry.finish(), &memory, 3);
        Self { model, strategy, memory }
    }

    fn loss(&mut self, batch: &Batch) -> f64 {
        let mut pass = Pass::new(&mut self.strategy, &self.memory, Seeds::default(), 1);
        f64::from(self.model.forward(&mut pass, batch).unwrap())
    }

    /// Adds the gradients of the mean loss of `batches`, with `at_once` of them in a pass.
    fn accumulate(&mut self, batches: &[Batch], at_once: usize) -> Vec<f32> {
        self.strategy.zero_gradients();
        for batches in batches.chunks(at_once) {
            let seeds = vec![Seeds::default(); batches.len()];
            let mut pass = Pass::with_micro_batches(&mut self.strategy, &self.memory, &seeds, 1);
            self.model.forward_each(&mut pass, batches).unwrap();
            self.model.backward(&mut pass, 1.0).unwrap();
            assert!(pass.is_complete());
        }
        self.strategy.gradients().to_vec()
    }

    /// Checks that the slope of the loss along a random direction in each parameter equals the
    /// product of direction and gradient.
    fn check(&mut self, batch: &Batch) {
        self.accumulate(std::slice::from_ref(batch), 1);
        for id in (0..self.strategy.inventory().parameters.len()).map(ParameterId) {
            let gradient = self.strategy.gradient_of(id).to_vec();
            let direction = random_values(1000, gradient.len());
            let slope: f64 = gradient.iter().zip(&direction).map(|(g, d)| f64::from(g * d)).sum();
            let length = gradient.iter().map(|g| f64::from(g * g)).sum::<f64>().sqrt();
            let (kept, step) = (self.strategy.weights(id).to_vec(), 1.0 / 256.0);
            let mut loss_at = |step: f32| {
                let moved = kept.iter().zip(&direction).map(|(weight, along)| weight + step * along);
                self.strategy
                    .weights_mut(id)
                    .iter_mut()
                    .zip(moved)
                    .for_each(|(weight, value)| *weight = value);
                self.loss(batch)
            };
            let mut difference = |step: f32| loss_at(step) - loss_at(-step);
            let quotient = (8.0 * difference(step) - difference(2.0 * step)) / (12.0 * f64::from(step));
            self.strategy.weights_mut(id).copy_from_slice(&kept);
            assert!(
                length > 0.0 && (slope - quotient).abs() < 1e-3 * length + 3e-4,
                "{slope}, not {quotient}"
            );
        }
    }
}

fn samples(seed: u64, labels: &[u32]) -> Batch {
    Batch::new(Samples { features: random_values(seed, labels.len() * 50), labels: labels.to_vec() })
}

#[test]
fn classifiers_have_correct_gradients() {
    let batch = samples(8, &[1, 0, 2]);
    Fixture::new(|registry| Classifier::mlp(registry, &[50, 9, 3])).check(&batch);
    Fixture::new(|registry| Classifier::conv_net(registry, 2, [5, 5], &[3, 4], 3)).check(&batch);
}

#[test]
fn classifiers_support_breadth_first() {
    let batches = [samples(8, &[1, 0]), samples(9, &[2, 1])];
    let gradients = |at_once| {
        Fixture::new(|registry| Classifier::mlp(registry, &[50, 9, 3])).accumulate(&batches, at_once)
    };
    assert_eq!(gradients(2), gradients(1));
}

#[test]
fn classifier_learns_nonlinear_function() {
    let features = vec![0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0];
    let batch = Batch::new(Samples { features, labels: vec![0, 1, 1, 0] });
    let mut fixture = Fixture::new(|registry| Classifier::mlp(registry, &[2, 16, 2]));
    for _ in 0..400 {
        fixture.accumulate(std::slice::from_ref(&batch), 1);
        fixture.strategy.sgd_step(1.0);
    }
    assert!(fixture.loss(&batch) < 0.05);
}

#[test]
fn mismatched_batches_are_rejected() {
    let mut fixture = Fixture::new(|registry| Classifier::mlp(registry, &[2, 3]));
    let mut pass = Pass::new(&mut fixture.strategy, &fixture.memory, Seeds::default(), 1);
    let mut error = |batch| fixture.model.forward(&mut pass, &batch).unwrap_err().to_string();
    let short = Batch::new(Samples { features: vec![0.0; 4], labels: vec![1, 2, 0] });
    assert_eq!(error(short), "4 features of 3 samples for a classifier of 2 features");
    assert!(
        error(Batch::tokens(&[1], &[2], 1)).ends_with("for a model of unisono_classifier::model::Samples")
    );
}
