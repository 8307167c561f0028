//! A mixture equals the dense loop over all experts, on one rank and on several.

mod dense_loop;

use super::*;
use crate::tensor_parallel::TensorParallel;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use unisono::Communicator;
use unisono_nn::allocator::Allocator;
use unisono_nn::modules::{GradCheck, LinearInit, Module, random_values};
use unisono_nn::parameter::{ParameterId, Registry};
use unisono_nn::pass::{Pass, Seeds};
use unisono_nn::strategy::{LocalStrategy, Strategy};
use unisono_nn::tensor::Tensor;
use unisono_nn::testing::run_ranks;

const FEATURES: usize = 6;
const HIDDEN: usize = 5;

fn shape(is_gated: bool) -> ExpertShape {
    ExpertShape { features: FEATURES, hidden: HIDDEN, is_gated, init: [LinearInit::fan_in(FEATURES); 2] }
}

/// Settings without losses, which the reference lacks.
fn settings(count: usize, per_token: usize) -> Experts {
    Experts { count, per_token, balance: ExpertBalance::None, ..Experts::default() }
}

fn new_mixture(registry: &mut Registry, settings: &Experts, parallel: &ExpertParallel) -> MixtureOfExperts {
    MixtureOfExperts::new(registry, settings, shape(true), &TensorParallel::default(), parallel)
}

/// Computes a gated expert, with its weights side by side.
fn expert(x: &[f64], input_weights: &[f64], output_weights: &[f64]) -> Vec<f64> {
    let hidden = output_weights.len() / FEATURES;
    let sum = |row: usize| {
        (0..FEATURES).map(|column| input_weights[row * FEATURES + column] * x[column]).sum::<f64>()
    };
    let gated = |unit: usize| sum(unit) / (1.0 + (-sum(unit)).exp()) * sum(hidden + unit);
    let gated: Vec<f64> = (0..hidden).map(gated).collect();
    (0..FEATURES)
        .map(|row| (0..hidden).map(|unit| output_weights[row * hidden + unit] * gated[unit]).sum())
        .collect()
}

/// Computes the scores of a row by the formula.
fn scores(kind: RouterScore, x: &[f64], router: &[f64]) -> Vec<f64> {
    let logits = router.chunks_exact(FEATURES);
    let powers: Vec<f64> =
        logits.map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum::<f64>().exp()).collect();
    match kind {
        RouterScore::Softmax => powers.iter().map(|power| power / powers.iter().sum::<f64>()).collect(),
        RouterScore::Sigmoid => powers.iter().map(|power| power / (1.0 + power)).collect(),
    }
}

/// Computes a row by a loop over all experts. `weights` has the router, W₁ and W₂ of shared experts
/// if there are some, and those of each expert.
fn dense(settings: &Experts, x: &[f64], weights: &[Vec<f64>]) -> Vec<f64> {
    let scores = scores(settings.score, x, &weights[0]);
    let rank = |expert: usize| {
        let better = |other: &usize| {
            scores[*other] > scores[expert] || (scores[*other] == scores[expert] && *other < expert)
        };
        (0..settings.count).filter(better).count()
    };
    let chosen: Vec<usize> =
        (0..settings.count).filter(|&expert| rank(expert) < settings.per_token).collect();
    let sum: f64 = if settings.normalize { chosen.iter().map(|&expert| scores[expert]).sum() } else { 1.0 };
    let (mut y, expert_weights) = match settings.shared {
        0 => (vec![0.0; FEATURES], &weights[1..]),
        _ => (expert(x, &weights[1], &weights[2]), &weights[3..]),
    };
    for number in chosen {
        let weight = settings.scale * scores[number] / sum;
        let result = expert(x, &expert_weights[2 * number], &expert_weights[2 * number + 1]);
        y.iter_mut().zip(result).for_each(|(y, result)| *y += weight * result);
    }
    y
}

/// Settings of DeepSeek's kind: fine-grained experts, shared ones, and independent scores.
fn fine_grained() -> Experts {
    Experts { shared: 2, score: RouterScore::Sigmoid, scale: 2.5, ..settings(16, 6) }
}

#[test]
fn mixtures_equal_the_dense_loop_over_experts() {
    let unscaled = Experts { normalize: false, ..settings(4, 2) };
    for settings in [settings(4, 1), settings(4, 2), unscaled, settings(5, 5), fine_grained()] {
        let check = GradCheck::new(|r| new_mixture(r, &settings, &ExpertParallel::default()), 9, FEATURES);
        check.check_values(1e-6, |x, weights| dense(&settings, x, weights));
    }
}

#[test]
fn gradients_are_correct_where_all_experts_are_chosen() {
    let sigmoid = Experts { score: RouterScore::Sigmoid, scale: 1.5, ..settings(3, 3) };
    for settings in [Experts { normalize: false, shared: 1, ..settings(3, 3) }, sigmoid] {
        let make = |r: &mut Registry| new_mixture(r, &settings, &ExpertParallel::default());
        GradCheck::new(make, 4, FEATURES).check_gradients(1e-3);
    }
    let make = |r: &mut Registry| {
        let split = TensorParallel::default();
        MixtureOfExperts::new(r, &settings(2, 2), shape(false), &split, &ExpertParallel::default())
    };
    GradCheck::new(make, 4, FEATURES).check_gradients(1e-3);
}

/// Difference quotients of the dense loop: choices do not change within a step this small.
#[test]
fn gradients_of_chosen_experts_are_those_of_the_dense_loop() {
    for settings in [settings(4, 2), Experts { normalize: false, ..settings(4, 1) }, fine_grained()] {
        let (found, input) = (run(&settings, 1, &input(7), 7), input(7));
        let slopes = unisono_nn::modules::to_f64(&slopes(7));
        let loss = |x: &[f64], weights: &[Vec<f64>]| {
            let rows = x.chunks_exact(FEATURES).flat_map(|row| dense(&settings, row, weights));
            rows.zip(&slopes).map(|(y, slope)| y * slope).sum::<f64>()
        };
        assert_gradients_are_quotients(&found, &input, loss);
    }
}

/// Asserts that the gradients of `input` and of all weights are difference quotients of `loss`.
fn assert_gradients_are_quotients(found: &Found, input: &[f32], loss: impl Fn(&[f64], &[Vec<f64>]) -> f64) {
    const STEP: f64 = 1e-6;
    let weights: Vec<Vec<f64>> =
        found.weights.iter().map(|values| unisono_nn::modules::to_f64(values)).collect();
    let x = unisono_nn::modules::to_f64(input);
    let assert_quotient = |found: f32, upper: f64, lower: f64, what: &str| {
        let expected = (upper - lower) / (2.0 * STEP);
        assert!(
            (f64::from(found) - expected).abs() < 2e-5 * (1.0 + expected.abs()),
            "{what}: {found}, not {expected}"
        );
    };
    for (index, gradient) in found.of_input.iter().enumerate() {
        let moved = |step: f64| {
            let mut x = x.clone();
            x[index] += step;
            loss(&x, &weights)
        };
        assert_quotient(*gradient, moved(STEP), moved(-STEP), "input");
    }
    for (id, gradients) in found.gradients.iter().enumerate() {
        for (index, gradient) in gradients.iter().enumerate() {
            let moved = |step: f64| {
                let mut weights = weights.clone();
                weights[id][index] += step;
                loss(&x, &weights)
            };
            assert_quotient(*gradient, moved(STEP), moved(-STEP), &format!("parameter {id}"));
        }
    }
}

fn input(rows: usize) -> Vec<f32> {
    random_values(99, rows * FEATURES)
}

fn slopes(rows: usize) -> Vec<f32> {
    random_values(77, rows * FEATURES)
}

/// Results of all tokens.
#[derive(Debug, Default)]
struct Found {
    output: Vec<f32>,
    of_input: Vec<f32>,
    /// Sums over ranks, by parameter.
    gradients: Vec<Vec<f32>>,
    weights: Vec<Vec<f32>>,
    /// Bytes that each rank sent in forward and in backward.
    sent: Vec<[u64; 2]>,
    /// Tokens of each expert on each rank.
    loads: Vec<Vec<u64>>,
    /// Sum of the losses of the router, times their factors: the mean over ranks.
    added: f64,
    dropped: f64,
}

/// Runs a mixture on the tokens of each rank, in sequences of `sequence` rows.
fn run_rank(group: &Communicator, settings: &Experts, input: &[f32], sequence: usize) -> Found {
    let (memory, rows) = (Allocator::default(), input.len() / FEATURES / group.size());
    let sharing = ExpertParallel::new((group.size() > 1).then(|| group.clone()));
    let mut registry = Registry::default();
    let (_, mixture) = registry.unit("m", |registry| new_mixture(registry, settings, &sharing));
    let mut strategy = LocalStrategy::new(registry.finish(), &memory, 1);
    let ids: Vec<_> = (0..strategy.inventory().parameters.len()).map(ParameterId).collect();
    for &id in &ids {
        // As GradCheck does; a bias begins with the values of the test.
        let weights = strategy.weights_mut(id);
        weights.copy_from_slice(&random_values(id.0 as u64, weights.len()));
    }
    let rank_rows = |input_rows: &[f32]| {
        let part = &input_rows[group.rank() * rows * FEATURES..][..rows * FEATURES];
        Tensor::from_slice(&memory, rows, FEATURES, part)
    };
    let bytes = || group.traffic_stats().expect("a count").bytes;
    let mut found = Found::default();
    {
        let mut pass = Pass::new(&mut strategy, &memory, Seeds::default(), 1);
        pass.set_sequence(sequence);
        let start = bytes();
        found.output = mixture.forward(&mut pass, rank_rows(input)).expect("forward").data().to_vec();
        let middle = bytes();
        let input_rows = slopes(input.len() / FEATURES);
        found.of_input =
            mixture.backward(&mut pass, rank_rows(&input_rows)).expect("backward").data().to_vec();
        assert!(pass.is_complete(), "all that was saved is taken back");
        found.sent = vec![[middle - start, bytes() - middle]];
        let sums = pass.added_mut().take_sums();
        found.added = sums.total;
        found.loads = sums.loads.into_values().collect();
        found.dropped = sums.metrics.get("dropped").map_or(0.0, |(sum, _)| *sum);
    }
    found.gradients = ids.iter().map(|&id| strategy.gradient_of(id).to_vec()).collect();
    found.weights = ids.iter().map(|&id| strategy.weights(id).to_vec()).collect();
    found
}

fn run(settings: &Experts, ranks: usize, input: &[f32], sequence: usize) -> Found {
    let parts = run_ranks(ranks, |group| run_rank(&group, settings, input, sequence));
    let mut merged = Found { weights: parts[0].weights.clone(), ..Found::default() };
    merged.gradients = parts[0].gradients.iter().map(|gradients| vec![0.0; gradients.len()]).collect();
    for part in parts {
        merged.output.extend(part.output);
        merged.of_input.extend(part.of_input);
        merged.sent.extend(part.sent);
        merged.loads.extend(part.loads);
        merged.added += part.added / ranks as f64;
        merged.dropped += part.dropped / ranks as f64;
        for (sum, gradient) in merged.gradients.iter_mut().zip(part.gradients) {
            sum.iter_mut().zip(gradient).for_each(|(sum, gradient)| *sum += gradient);
        }
    }
    merged
}

fn assert_near(what: &str, found: &[f32], expected: &[f32]) {
    let largest = expected.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
    let is_near = |(left, right): (&f32, &f32)| (left - right).abs() <= 1e-6 * largest.max(1e-3);
    assert!(found.iter().zip(expected).all(is_near), "{what}: {found:?}, not {expected:?}");
}

#[test]
fn shared_experts_match_experts_on_one_rank() {
    let capacity = Experts { capacity_factor: 0.75, ..settings(8, 2) };
    for settings in [settings(8, 1), settings(8, 2), Experts { shared: 1, ..settings(8, 3) }, capacity] {
        let input = input(24);
        let reference = run(&settings, 1, &input, 6);
        for ranks in [2, 4] {
            let found = run(&settings, ranks, &input, 6);
            let name = format!("{settings:?} on {ranks} ranks");
            assert_eq!(found.output, reference.output, "{name}: the same products and sums");
            assert_near(&name, &found.of_input, &reference.of_input);
            found
                .gradients
                .iter()
                .zip(&reference.gradients)
                .for_each(|(left, right)| assert_near(&name, left, right));
            assert!((found.dropped - reference.dropped).abs() < 1e-6, "{name}");
        }
    }
}

#[test]
fn tied_tokens_choose_the_first_experts() {
    // Rows of zeros have equal logits.
    let (settings, input) = (settings(8, 2), vec![0.0; 16 * FEATURES]);
    for ranks in [1, 2, 4] {
        let found = run(&settings, ranks, &input, 4);
        let loads: Vec<u64> =
            (0..8).map(|expert| found.loads.iter().map(|expert_loads| expert_loads[expert]).sum()).collect();
        assert_eq!(loads, [16, 16, 0, 0, 0, 0, 0, 0], "{ranks} ranks");
        assert!(found.output.iter().all(|value| *value == 0.0));
        // Experts without tokens have a gradient of zero, not none.
        assert!(found.gradients.iter().flatten().all(|value| *value == 0.0));
    }
    // With room for half of equal loads, two tokens of each sequence stay with each expert.
    let tight = Experts { capacity_factor: 2.0, ..settings };
    for ranks in [1, 2, 4] {
        assert_eq!(run(&tight, ranks, &input, 4).dropped, 0.5, "{ranks} ranks");
    }
}

/// Each row of a token goes to each of its experts and back, and so does its gradient.
#[test]
fn sent_bytes_are_those_of_the_rows_of_other_ranks() {
    let (settings, input) = (settings(8, 2), input(32));
    for ranks in [2, 4] {
        let (found, share) = (run(&settings, ranks, &input, 8), 8 / ranks);
        for (rank, [forward, backward]) in found.sent.iter().enumerate() {
            let tokens_between = |owner: usize, experts: usize| {
                found.loads[owner][experts * share..(experts + 1) * share].iter().sum::<u64>()
            };
            let there: u64 =
                (0..ranks).filter(|other| *other != rank).map(|other| tokens_between(rank, other)).sum();
            let here: u64 =
                (0..ranks).filter(|other| *other != rank).map(|other| tokens_between(other, rank)).sum();
            let rows = (there + here) * (FEATURES * size_of::<f32>()) as u64;
            let counts = ((ranks - 1) * share * size_of::<u64>()) as u64;
            assert_eq!([*forward, *backward], [rows + counts, rows], "rank {rank} of {ranks}");
        }
    }
}

/// Shared expert that waits for another rank in forward and in backward.
struct WaitForPeer(Mutex<Receiver<()>>);

impl WaitForPeer {
    fn wait(&self) {
        let peer = self.0.lock().unwrap();
        peer.recv_timeout(Duration::from_secs(60)).expect("rows arrive while this rank computes");
    }
}

impl Module for WaitForPeer {
    fn forward(&self, _: &mut Pass<'_>, input: Tensor) -> unisono_nn::error::Result<Tensor> {
        self.wait();
        Ok(input)
    }

    fn backward(&self, _: &mut Pass<'_>, gradient: Tensor) -> unisono_nn::error::Result<Tensor> {
        self.wait();
        Ok(gradient)
    }
}

/// Runs forward and backward of the second rank, which tells the first one when its rows are there.
fn run_peer(mixture: &MixtureOfExperts, pass: &mut Pass<'_>, input: &Tensor, told: &Sender<()>) {
    let routing = mixture.router.forward(pass, input).unwrap();
    let group = mixture.parallel.group();
    let way = dispatch::Dispatch::new(pass, group, 4, 2, &routing).unwrap();
    let under_way = way.send(pass, input, None);
    let rows = way.receive(pass, under_way).unwrap();
    told.send(()).unwrap();
    let results = mixture.experts.forward(pass, rows, &way.counts()).unwrap();
    let under_way = way.send_back(pass, results);
    way.receive_back(pass, under_way).unwrap();
    let under_way = way.send(pass, input, None);
    let rows = way.receive(pass, under_way).unwrap();
    let gradients = mixture.experts.backward(pass, rows).unwrap();
    let under_way = way.send_back(pass, gradients);
    way.receive_back(pass, under_way).unwrap();
    told.send(()).unwrap();
}

/// The shared expert of rank 0 ends only after rank 1 has the rows of rank 0.
#[test]
fn rows_travel_while_shared_experts_compute() {
    let (sender, receiver) = channel();
    let ends = Mutex::new((Some(sender), Some(receiver)));
    run_ranks(2, |group| {
        let (memory, rank) = (Allocator::default(), group.rank());
        let (sharing, mut registry) = (ExpertParallel::new(Some(group)), Registry::default());
        let (_, mut mixture) = registry.unit("m", |r| new_mixture(r, &settings(4, 2), &sharing));
        let mut strategy = LocalStrategy::new(registry.finish(), &memory, 1);
        let mut pass = Pass::new(&mut strategy, &memory, Seeds::default(), 1);
        pass.set_sequence(8);
        let values = random_values(rank as u64, 8 * FEATURES);
        let input = || Tensor::from_slice(&memory, 8, FEATURES, &values);
        if rank == 1 {
            let sender = ends.lock().unwrap().0.take().unwrap();
            return run_peer(&mixture, &mut pass, &input(), &sender);
        }
        let receiver = ends.lock().unwrap().1.take().unwrap();
        mixture.shared = Some(Box::new(WaitForPeer(Mutex::new(receiver))));
        mixture.forward(&mut pass, input()).unwrap();
        mixture.backward(&mut pass, input()).unwrap();
    });
}
