//! What cut layers cost: how many collectives, and how many bytes.

use std::sync::Arc;
use unisono::Communicator;
use unisono_trainer::memory::Memory;
use unisono_trainer::models::{Batch, Gpt, GptConfig, Model};
use unisono_trainer::nn::{Module, Start};
use unisono_trainer::optim::{Sgd, Step};
use unisono_trainer::parallel::{Kind, Settings, Team, make};
use unisono_trainer::parameter::Registry;
use unisono_trainer::pass::{Pass, Seeds};
use unisono_trainer::split::{Plan, Split, Style};
use unisono_trainer::strategy::Local;
use unisono_trainer::tensor::Tensor;

const ROWS: usize = 6;
const WIDTH: usize = 24;

/// Runs `body` on so many ranks; what rank 0 returns.
fn on<R: Send>(ranks: usize, body: impl Fn(Communicator) -> R + Sync) -> R {
    let groups = Communicator::threads(ranks).unwrap();
    std::thread::scope(|scope| {
        let threads: Vec<_> = groups.into_iter().map(|group| scope.spawn(|| body(group))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).next().unwrap()
    })
}

/// Collectives and bytes at this rank so far.
fn moved(group: &Communicator) -> [u64; 2] {
    let traffic = group.traffic().unwrap();
    [traffic.operations, traffic.bytes]
}

/// What one map moves forward and backward, cut so between two ranks.
fn map_moves(style: Style) -> [[u64; 2]; 2] {
    on(2, |group| {
        let split = Split::new(Some(group.clone().into()), false, Plan::new([("m", style)]));
        let (mut registry, memory) = (Registry::default(), Memory::default());
        let (_, map) = registry.unit("m", |r| split.linear(r, 8, 8, Start::fan_in(8)));
        let mut strategy = Local::new(registry.finish(), &memory, 3);
        let mut pass = Pass::new(&mut strategy, &memory, Seeds::default(), 1);
        let inputs = if matches!(style, Style::Row { .. }) { 4 } else { 8 };
        let start = moved(&group);
        let output = map.forward(&mut pass, Tensor::zeros(&memory, ROWS, inputs)).unwrap();
        let turned = moved(&group);
        map.backward(&mut pass, output).unwrap();
        let end = moved(&group);
        [[0, 1].map(|of| turned[of] - start[of]), [0, 1].map(|of| end[of] - turned[of])]
    })
}

#[test]
fn a_map_by_columns_sends_nothing_forward_and_one_by_rows_nothing_backward() {
    let sum = [1, (4 * ROWS * 8) as u64];
    assert_eq!(map_moves(Style::Column { blocks: 1, grain: 1 }), [[0, 0], sum]);
    assert_eq!(map_moves(Style::Row { grain: 1 }), [sum, [0, 0]]);
}

/// What a GPT of so many layers moves forward and backward, cut between two ranks.
fn gpt_moves(layers: usize, sequence: bool) -> [[u64; 2]; 2] {
    on(2, |group| {
        let config = GptConfig::new(16, ROWS, WIDTH, 4, layers);
        let split = Split::new(Some(group.clone().into()), sequence, config.plan());
        let (mut registry, memory) = (Registry::default(), Memory::default());
        let model = Gpt::new(&mut registry, config, split).unwrap();
        let inventory = Arc::new(registry.finish());
        // Sums over ranks that share layers go over a communicator of their own, and are not counted here.
        let team = Team::new(None, Some(&group)).unwrap();
        let mut strategy = make(Kind::Zero1, &inventory, team, &Settings::default(), &memory).unwrap();
        let tokens: Vec<u32> = (0..=ROWS as u32).collect();
        let batch = Batch::Tokens { inputs: &tokens[1..], targets: &tokens[..ROWS], sequence: ROWS };
        strategy.begin(true).unwrap();
        let mut pass = Pass::new(&mut *strategy, &memory, Seeds::default(), 1);
        let start = moved(&group);
        model.forward(&mut pass, &batch).unwrap();
        let turned = moved(&group);
        model.backward(&mut pass, 1.0).unwrap();
        let end = moved(&group);
        strategy.finish().unwrap();
        strategy.update(&Sgd::default(), &Step { number: 1, rate: 0.1, factor: 1.0 }).unwrap();
        [[0, 1].map(|of| turned[of] - start[of]), [0, 1].map(|of| end[of] - turned[of])]
    })
}

/// What two more layers add.
fn two_layers_move(sequence: bool) -> [[u64; 2]; 2] {
    let (one, three) = (gpt_moves(1, sequence), gpt_moves(3, sequence));
    [0, 1].map(|way| [0, 1].map(|of| three[way][of] - one[way][of]))
}

#[test]
fn a_layer_takes_two_sums_forward_and_two_backward() {
    // A sum between two ranks sends a buffer.
    let bytes = 4 * (4 * ROWS * WIDTH) as u64;
    assert_eq!(two_layers_move(false), [[4, bytes]; 2]);
}

#[test]
fn sequence_parallelism_sends_as_many_bytes_in_twice_as_many_halves() {
    let [[sums, bytes], _] = two_layers_move(false);
    assert_eq!(two_layers_move(true), [[2 * sums, bytes]; 2]);
}
