//! Attention of chunks whose keys and values are gathered, also with micro-sequences.

use super::*;
use unisono_nn::parameter::UnitId;
use unisono_nn::step_plan::{Visit, Work};

/// Returns the output and gradient of a rank with a chunk of each sequence of `input` and `slope`.
fn chunk(
    group: &Communicator,
    attention: Attention,
    sequence: usize,
    input: &[f32],
    slope: &[f32],
) -> [Vec<f32>; 2] {
    let (memory, length) = (Allocator::default(), sequence / group.size());
    let chunks = |values: &[f32], columns: usize| {
        let range = group.rank() * length * columns..(group.rank() + 1) * length * columns;
        let sequences = values.chunks(sequence * columns);
        let rows: Vec<f32> = sequences.flat_map(|values| values[range.clone()].to_vec()).collect();
        Tensor::from_slice(&memory, rows.len() / columns, columns, &rows)
    };
    let mut strategy = LocalStrategy::new(Inventory::default(), &memory, 0);
    let mut pass = Pass::new(&mut strategy, &memory, Seeds::default(), 1);
    pass.set_sequence(length);
    if group.size() > 1 {
        ContextParallel::new(group).share(&mut pass);
    }
    let output = attention.forward(&mut pass, chunks(input, attention.input_width())).expect("forward");
    let gradient = attention.backward(&mut pass, chunks(slope, attention.width())).expect("backward");
    [output.data().to_vec(), gradient.data().to_vec()]
}

#[test]
fn chunked_attention_sees_earlier_chunks() {
    let sequence = 2 * TILE_ROWS + 4;
    for attention in [Attention::new(2, 3), Attention::new(4, 3).with_kv_heads(2)] {
        let columns = [attention.width(), attention.input_width()];
        let [slope, input] = columns.map(|columns| random_values(1, 2 * sequence * columns));
        let results_of = |ranks| run_ranks(ranks, |group| chunk(&group, attention, sequence, &input, &slope));
        let expected = results_of(1).remove(0);
        for ranks in [2, 3, 4] {
            for (rank, found) in results_of(ranks).into_iter().enumerate() {
                for ((found, expected), columns) in found.iter().zip(&expected).zip(columns) {
                    let length = sequence / ranks * columns;
                    let sequences = expected.chunks(sequence * columns);
                    let expected = sequences.flat_map(|values| &values[rank * length..][..length]);
                    let is_near = |(left, right): (&f32, &f32)| (left - right).abs() < 1e-5;
                    assert!(found.iter().zip(expected).all(is_near), "{ranks} ranks, rank {rank}");
                }
            }
        }
    }
}

/// Returns outputs and gradients of this rank's part of each of `parts` micro-sequences of one
/// sequence.
fn in_micro_sequences(
    group: &Communicator,
    attention: Attention,
    parts: usize,
    input: &[f32],
    slope: &[f32],
) -> [Vec<Vec<f32>>; 2] {
    let (memory, columns) = (Allocator::default(), [attention.input_width(), attention.width()]);
    let length = input.len() / columns[0] / parts / group.size();
    let part = |values: &[f32], columns: usize, index: usize| {
        let first = (index * group.size() + group.rank()) * length;
        Tensor::from_slice(&memory, length, columns, &values[first * columns..(first + length) * columns])
    };
    let mut strategy = LocalStrategy::new(Inventory::default(), &memory, 0);
    let seeds = vec![Seeds::default(); parts];
    let mut pass = Pass::with_micro_batches(&mut strategy, &memory, &seeds, 1);
    pass.set_sequence(length);
    pass.set_micro_sequences(parts);
    if group.size() > 1 {
        ContextParallel::new(group).share(&mut pass);
    }
    let mut results = [vec![Vec::new(); parts], vec![Vec::new(); parts]];
    for (work, result) in [Work::Forward, Work::Backward].into_iter().zip(&mut results) {
        let visit = Visit { work, unit: UnitId(0), micro_batches: 0..parts };
        let run = |pass: &mut Pass<'_>, index: usize| {
            let value = match work {
                Work::Forward => attention.forward(pass, part(input, columns[0], index))?,
                _ => attention.backward(pass, part(slope, columns[1], index))?,
            };
            result[index] = value.data().to_vec();
            Ok(())
        };
        pass.visit(&visit, run).expect("a visit");
    }
    assert!(pass.is_complete(), "keys and values are gone");
    results
}

#[test]
fn micro_sequences_of_chunks_see_earlier_ones() {
    let sequence = 3 * TILE_ROWS + 12;
    for attention in [Attention::new(2, 3), Attention::new(4, 3).with_kv_heads(2)] {
        let columns = [attention.width(), attention.input_width()];
        let [slope, input] = columns.map(|columns| random_values(1, sequence * columns));
        let expected = run_ranks(1, |group| chunk(&group, attention, sequence, &input, &slope)).remove(0);
        for (ranks, parts) in [(1, 2), (1, 6), (2, 3), (3, 4)] {
            let found =
                run_ranks(ranks, |group| in_micro_sequences(&group, attention, parts, &input, &slope));
            for ((which, expected), columns) in expected.iter().enumerate().zip(columns) {
                let parts = (0..parts).flat_map(|part| found.iter().map(move |rank| &rank[which][part]));
                let found: Vec<f32> = parts.flatten().copied().collect();
                assert_eq!(found.len(), sequence * columns);
                let is_near = |(left, right): (&f32, &f32)| (left - right).abs() < 1e-5;
                assert!(found.iter().zip(expected).all(is_near), "{ranks} ranks, value {which}");
            }
        }
    }
}

#[test]
fn micro_sequences_are_refused_where_keys_are_not_gathered() {
    run_ranks(2, |group| {
        let (memory, attention) = (Allocator::default(), Attention::new(2, 3));
        let mut strategy = LocalStrategy::new(Inventory::default(), &memory, 0);
        let mut pass = Pass::with_micro_batches(&mut strategy, &memory, &[Seeds::default(); 2], 1);
        pass.set_sequence(4);
        pass.set_micro_sequences(2);
        for transfer in [KvTransfer::Ring, KvTransfer::Ulysses] {
            ContextParallel::new(&group).with_transfer(transfer, 1).share(&mut pass);
            let input = Tensor::zeros(&memory, 4, attention.input_width());
            let refusal = attention.forward(&mut pass, input).expect_err("a refusal").to_string();
            assert!(refusal.starts_with("2 micro-sequences (data.micro_sequences) with"), "{refusal}");
        }
    });
}
