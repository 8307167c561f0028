//! Attention computes the scores of visible tiles only.

use super::*;
use crate::allocator::Allocator;
use crate::modules::random_values;
use crate::ops::host::attention::tile::COMPUTED_SCORES;
use crate::parameter::Inventory;
use crate::pass::Seeds;
use crate::strategy::LocalStrategy;

const SEQUENCES: usize = 2;
const SEQUENCE: usize = 8 * TILE_ROWS;

/// Returns the number of scores that are computed, forward and back.
fn computed(attention: Attention) -> [usize; 2] {
    let (memory, rows) = (Allocator::default(), SEQUENCES * SEQUENCE);
    let tensor = |columns: usize| {
        Tensor::from_slice(&memory, rows, columns, &random_values(columns as u64, rows * columns))
    };
    let mut strategy = LocalStrategy::new(Inventory::default(), &memory, 0);
    let mut pass = Pass::new(&mut strategy, &memory, Seeds::default(), 1);
    pass.set_sequence(SEQUENCE);
    let start = COMPUTED_SCORES.get();
    attention.forward(&mut pass, tensor(attention.input_width())).expect("forward");
    let middle = COMPUTED_SCORES.get();
    attention.backward(&mut pass, tensor(attention.width())).expect("backward");
    [middle - start, COMPUTED_SCORES.get() - middle]
}

#[test]
fn tiles_beyond_the_visible_keys_are_not_computed() {
    let (attention, every_key) = (Attention::new(2, 2), SEQUENCES * SEQUENCE * SEQUENCE * 2);
    let found = computed(attention.bidirectional());
    assert_eq!(found, [every_key; 2], "attention to all positions skips nothing");
    let causal = computed(attention);
    assert_eq!(causal.map(|scores| 16 * scores), [9 * every_key; 2], "36 of 64 tiles are computed");
}
