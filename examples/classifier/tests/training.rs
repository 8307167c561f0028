//! Training of classifiers on several ranks, with every strategy.

use unisono_classifier::{Classifier, Outcome, Table, Training, images_of_bars, on_ranks, train};
use unisono_parallel::data_parallel::ParallelKind;

const KINDS: [ParallelKind; 4] =
    [ParallelKind::Replicated, ParallelKind::Zero1, ParallelKind::Zero2, ParallelKind::Zero3];

/// Returns points with the class "both coordinates have the same sign".
fn quadrants(count: u32) -> Table {
    let row = |n: u32| (f64::from(n * 7919 % 100) / 10.0 - 5.0, f64::from(n * 104_729 % 97) / 10.0 - 5.0);
    let line = |n| {
        let (x, y) = row(n);
        format!("{x},{y},{}\n", u8::from(x * y > 0.0))
    };
    Table::parse(&(0..count).map(line).collect::<String>()).unwrap()
}

fn perceptron(ranks: usize, strategy: ParallelKind, steps: u64) -> Outcome {
    let (training, held_back) = quadrants(600).split(0.1, 1);
    let settings = Training { strategy, batch: 16, steps, lr: 1e-2 };
    let mut outcomes = on_ranks(ranks, |group| {
        train(group, |registry| Classifier::mlp(registry, &[2, 16, 16, 2]), [&training, &held_back], settings)
    })
    .unwrap();
    assert!(outcomes.windows(2).all(|pair| pair[0] == pair[1]), "ranks have different models");
    outcomes.remove(0)
}

#[test]
fn perceptron_learns_on_two_ranks() {
    let outcome = perceptron(2, ParallelKind::Replicated, 400);
    assert!(outcome.validation < 0.3 && outcome.accuracy > 0.85, "{outcome:?}");
}

#[test]
fn strategies_and_ranks_take_the_same_steps() {
    let alone = perceptron(1, ParallelKind::Replicated, 20);
    for ranks in [2, 4] {
        let replicated = perceptron(ranks, ParallelKind::Replicated, 20);
        for (loss, other) in replicated.losses.iter().zip(&alone.losses) {
            assert!((loss / other - 1.0).abs() < 1e-4, "{ranks} ranks: {loss}, not {other}");
        }
        for kind in KINDS {
            let outcome = perceptron(ranks, kind, 20);
            assert_eq!(outcome, replicated, "{kind:?} on {ranks} ranks");
        }
    }
}

#[test]
fn convolutions_learn_with_sharded_weights() {
    let (training, held_back) = images_of_bars(600, 6, 1).split(0.2, 1);
    let settings = Training { strategy: ParallelKind::Zero3, batch: 40, steps: 100, lr: 0.005 };
    let outcomes = on_ranks(2, |group| {
        let make = |registry: &mut _| Classifier::conv_net(registry, 1, [6; 2], &[8, 16], 3);
        train(group, make, [&training, &held_back], settings)
    });
    let outcomes = outcomes.unwrap();
    assert!(outcomes[0] == outcomes[1] && outcomes[0].accuracy > 0.9, "{:?}", outcomes[0]);
}
