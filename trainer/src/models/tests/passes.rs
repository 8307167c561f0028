//! Breadth-first micro-batches, sequence chunks, and head row groups give equal gradients.

use super::*;
use unisono::Communicator;
use unisono_nn::batch::Batch;
use unisono_nn::testing::run_ranks;
use unisono_parallel::context_parallel::ContextParallel;

fn seeds(micro_batches: u64) -> Vec<Seeds> {
    (0..micro_batches).map(|number| Seeds { shared: number, per_rank: number }).collect()
}

/// Returns two micro-batches of one sequence each, with the first twelve tokens.
fn halves() -> [Batch; 2] {
    [0..6, 6..12].map(|range| Batch::tokens(&INPUTS[range.clone()], &TARGETS[range], 6))
}

/// Returns losses and gradients of both micro-batches, with `at_once` of them per pass.
fn accumulated(config: GptConfig, at_once: usize) -> (Vec<f32>, Vec<f32>) {
    let (mut rig, mut losses) = (gpt(config).rough(), Vec::new());
    for (batches, seeds) in halves().chunks(at_once).zip(seeds(2).chunks(at_once)) {
        let mut pass = Pass::with_micro_batches(&mut rig.strategy, &rig.memory, seeds, 1);
        losses.extend(rig.model.forward_each(&mut pass, batches).expect("forward"));
        rig.model.backward(&mut pass, 0.5).expect("backward");
        assert!(pass.is_complete());
    }
    (losses, rig.strategy.gradients().to_vec())
}

fn near(found: &[f32], expected: &[f32], tolerance: f32) {
    let scale = expected.iter().fold(0.0f32, |scale, value| scale.max(value.abs()));
    for (index, (left, right)) in found.iter().zip(expected).enumerate() {
        assert!((left - right).abs() <= tolerance * scale, "number {index} is {left}, not {right}");
    }
}

#[test]
fn breadth_first_equals_depth_first() {
    for checkpoint in [false, true] {
        let config = GptConfig {
            tie_word_embeddings: false,
            dropout: 0.2,
            activation_checkpointing: checkpoint,
            ..small()
        };
        assert_eq!(accumulated(config.clone(), 2), accumulated(config, 1));
    }
    // A tied weight receives all gradients of the head before those of the embedding.
    let ((losses, breadth), (expected, depth)) = (accumulated(small(), 2), accumulated(small(), 1));
    assert_eq!(losses, expected);
    near(&breadth, &depth, 1e-6);
}

#[test]
fn chunked_head_is_equal_in_less_memory() {
    let run = |splits| {
        let config =
            GptConfig { vocabulary: 400, ignore_index: Some(6), cross_entropy_splits: splits, ..small() };
        let mut rig = gpt(config).rough();
        let loss = rig.forward_and_backward(&TOKENS);
        let peak = rig.memory.usage(unisono_nn::allocator::AllocClass::Activations).peak;
        (loss, rig.strategy.gradients().to_vec(), peak)
    };
    let reference = run(1);
    for splits in [2, 5, 100] {
        let parts = run(splits);
        assert!(
            (parts.0 / reference.0 - 1.0).abs() < 1e-6,
            "{splits} parts: {}, not {}",
            parts.0,
            reference.0
        );
        near(&parts.1, &reference.1, 1e-6);
        assert!(parts.2 < reference.2 - 4 * 400 * 5, "{splits} parts: {} bytes of {}", parts.2, reference.2);
    }
}

/// Returns the mean loss and mean gradients of `ranks` ranks with chunks of all sequences.
fn in_chunks(config: &GptConfig, ranks: usize) -> (f32, Vec<f32>) {
    let results = run_ranks(ranks, |group| {
        let length = 6 / ranks;
        let chunk_of = |tokens: &[u32]| -> Vec<u32> {
            tokens
                .chunks(6)
                .flat_map(|sequence| sequence[group.rank() * length..][..length].to_vec())
                .collect()
        };
        let (inputs, targets) = (chunk_of(&INPUTS), chunk_of(&TARGETS));
        let mut rig = gpt(config.clone()).rough();
        let mut pass = Pass::new(&mut rig.strategy, &rig.memory, Seeds::default(), 1);
        ContextParallel::new(&group).share(&mut pass);
        let batch = Batch::tokens(&inputs, &targets, length);
        let mut loss = [rig.model.forward(&mut pass, &batch).expect("forward")];
        rig.model.backward(&mut pass, 1.0).expect("backward");
        let mut gradients = rig.strategy.gradients().to_vec();
        group.all_reduce(&mut loss, unisono::Avg).expect("losses");
        group.all_reduce(&mut gradients, unisono::Avg).expect("gradients");
        (loss[0], gradients)
    });
    results.into_iter().next_back().expect("one")
}

#[test]
fn chunked_sequences_match_whole() {
    // An ignored target in one chunk makes the means of chunks differ.
    for config in [
        GptConfig { ignore_index: Some(6), ..small() },
        GptConfig { activation_checkpointing: true, ..small() },
    ] {
        let mut rig = gpt(config.clone()).rough();
        let loss = rig.forward_and_backward(&TOKENS);
        for ranks in [2, 3, 6] {
            let (found, gradients) = in_chunks(&config, ranks);
            assert!((found / loss - 1.0).abs() < 1e-6, "{ranks} chunks: {found}, not {loss}");
            near(&gradients, rig.strategy.gradients(), 3e-6);
        }
    }
}

#[test]
fn chunks_longer_than_context_are_rejected() {
    let groups = Communicator::local(2).expect("ranks");
    let mut rig = gpt(small());
    let mut pass = Pass::new(&mut rig.strategy, &rig.memory, Seeds::default(), 1);
    ContextParallel::new(&groups[0]).share(&mut pass);
    let error = rig.model.forward(&mut pass, &TOKENS).expect_err("twice 6 are more than 8").to_string();
    assert!(
        error.contains("12 tokens in sequences of 6") && error.contains("8 tokens of context"),
        "{error}"
    );
}
