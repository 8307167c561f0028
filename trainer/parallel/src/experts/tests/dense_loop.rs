//! Capacity and losses of the router, against a dense loop over sequences in 64 bits.

use super::*;

/// Results of the dense loop for all tokens.
#[derive(Default)]
struct DenseLoop {
    output: Vec<f64>,
    /// Sum of the losses of the router, times their factors.
    added: f64,
    /// Share of the choices that found no room.
    dropped: f64,
}

/// Returns the logits of a row.
fn logits(x: &[f64], router: &[f64]) -> Vec<f64> {
    router.chunks_exact(FEATURES).map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum()).collect()
}

/// Returns the experts of a row from the best, of which the lower number is the first among equals.
fn ranking(settings: &Experts, scores: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..settings.count).collect();
    order.sort_by(|left, right| scores[*right].total_cmp(&scores[*left]).then(left.cmp(right)));
    order.truncate(settings.per_token);
    order
}

/// Returns true for each choice of each token of a sequence for which its expert has room. All
/// first choices come before second ones, and earlier tokens before later ones.
fn rooms(settings: &Experts, chosen: &[Vec<usize>]) -> Vec<Vec<bool>> {
    let mut kept = vec![vec![true; settings.per_token]; chosen.len()];
    if settings.capacity_factor == 0.0 {
        return kept;
    }
    let equal = (settings.per_token * chosen.len()) as f64 / settings.count as f64;
    let room = (settings.capacity_factor * equal).ceil() as usize;
    for expert in 0..settings.count {
        let places =
            (0..settings.per_token).flat_map(|choice| (0..chosen.len()).map(move |token| (token, choice)));
        let claims = places.filter(|&(token, choice)| chosen[token][choice] == expert);
        claims.skip(room).for_each(|(token, choice)| kept[token][choice] = false);
    }
    kept
}

/// Returns the balance loss of a sequence: the sum over experts of their relative load times their
/// mean probability. Loads count every choice, also those without room.
fn balance(settings: &Experts, scores: &[Vec<f64>], chosen: &[Vec<usize>]) -> f64 {
    let tokens = chosen.len() as f64;
    let of_expert = |expert: usize| {
        let load = chosen.iter().flatten().filter(|&&other| other == expert).count() as f64;
        let relative = load * settings.count as f64 / (settings.per_token as f64 * tokens);
        let probability = |scores: &Vec<f64>| scores[expert] / scores.iter().sum::<f64>();
        relative * scores.iter().map(probability).sum::<f64>() / tokens
    };
    (0..settings.count).map(of_expert).sum()
}

/// Computes all sequences by a loop over all experts. `weights` is that of [`dense`].
fn dense_loop(settings: &Experts, sequence: usize, x: &[f64], weights: &[Vec<f64>]) -> DenseLoop {
    let mut found = DenseLoop::default();
    let (rows, sequences) = (x.len() / FEATURES, x.len() / FEATURES / sequence);
    let routed = if settings.shared == 0 { &weights[1..] } else { &weights[3..] };
    for tokens in x.chunks_exact(sequence * FEATURES) {
        let tokens: Vec<&[f64]> = tokens.chunks_exact(FEATURES).collect();
        let token_scores: Vec<Vec<f64>> =
            tokens.iter().map(|x| scores(settings.score, x, &weights[0])).collect();
        let chosen: Vec<Vec<usize>> = token_scores.iter().map(|scores| ranking(settings, scores)).collect();
        let kept = rooms(settings, &chosen);
        for (token, x) in tokens.iter().enumerate() {
            let (scores, chosen) = (&token_scores[token], &chosen[token]);
            let sum: f64 = chosen.iter().map(|&expert| scores[expert]).sum();
            let factor = settings.scale / if settings.normalize { sum } else { 1.0 };
            let mut y = match settings.shared {
                0 => vec![0.0; FEATURES],
                _ => expert(x, &weights[1], &weights[2]),
            };
            for (&number, _) in chosen.iter().zip(&kept[token]).filter(|(_, has_room)| **has_room) {
                let result = expert(x, &routed[2 * number], &routed[2 * number + 1]);
                y.iter_mut().zip(result).for_each(|(y, result)| *y += factor * scores[number] * result);
            }
            found.output.extend(y);
            let log_sum = logits(x, &weights[0]).iter().map(|logit| logit.exp()).sum::<f64>().ln();
            found.added += settings.z_loss * log_sum * log_sum / rows as f64;
        }
        if settings.balance == ExpertBalance::Loss {
            let loss = balance(settings, &token_scores, &chosen);
            found.added += settings.balance_loss * loss / sequences as f64;
        }
        let dropped = kept.iter().flatten().filter(|has_room| !**has_room).count();
        found.dropped += dropped as f64 / (rows * settings.per_token) as f64;
    }
    found
}

/// Number of tokens, and of those in a sequence.
const TOKENS: usize = 12;
const SEQUENCE: usize = 6;

/// Asserts that outputs, losses, dropped choices and all gradients are those of the dense loop.
/// Returns the share of choices that were dropped.
fn assert_dense_loop(settings: &Experts) -> f64 {
    let input = input(TOKENS);
    let found = run(settings, 1, &input, SEQUENCE);
    let weights: Vec<Vec<f64>> =
        found.weights.iter().map(|values| unisono_nn::modules::to_f64(values)).collect();
    let expected = dense_loop(settings, SEQUENCE, &unisono_nn::modules::to_f64(&input), &weights);
    for (index, (found, expected)) in found.output.iter().zip(&expected.output).enumerate() {
        let error = (f64::from(*found) - expected).abs();
        assert!(
            error < 1e-5 * (1.0 + expected.abs()),
            "{settings:?}: output {index}: {found}, not {expected}"
        );
    }
    let (added, dropped) = (expected.added, expected.dropped);
    assert!((found.added - added).abs() < 1e-5 * (1.0 + added), "{settings:?}: {}, not {added}", found.added);
    assert!((found.dropped - dropped).abs() < 1e-6, "{settings:?}: {}, not {dropped}", found.dropped);
    let slopes = unisono_nn::modules::to_f64(&slopes(TOKENS));
    assert_gradients_are_quotients(&found, &input, |x, weights| {
        let moved = dense_loop(settings, SEQUENCE, x, weights);
        moved.output.iter().zip(&slopes).map(|(y, slope)| y * slope).sum::<f64>() + moved.added
    });
    expected.dropped
}

#[test]
fn losses_of_the_router_have_the_gradients_of_their_formulas() {
    let balanced = Experts { balance: ExpertBalance::Loss, balance_loss: 0.5, ..settings(4, 2) };
    let log_sums = Experts { z_loss: 0.25, ..settings(4, 2) };
    let independent = Experts { score: RouterScore::Sigmoid, shared: 1, scale: 1.5, ..balanced };
    for settings in [balanced, log_sums, independent, Experts { z_loss: 0.25, ..balanced }] {
        assert_eq!(assert_dense_loop(&settings), 0.0);
    }
}

#[test]
fn choices_without_room_are_those_of_the_dense_loop() {
    let tight = Experts { capacity_factor: 0.5, ..settings(4, 2) };
    let independent = Experts { score: RouterScore::Sigmoid, capacity_factor: 0.75, ..settings(4, 3) };
    let with_losses =
        Experts { balance: ExpertBalance::Loss, balance_loss: 0.5, capacity_factor: 1.0, ..settings(8, 2) };
    for settings in [tight, independent, with_losses] {
        assert!(assert_dense_loop(&settings) > 0.0, "{settings:?}: all choices have room");
    }
    let roomy = Experts { capacity_factor: 4.0, ..settings(4, 2) };
    assert_eq!(assert_dense_loop(&roomy), 0.0);
}
