//! Attention computes the scores of visible tiles only, on one rank and on several.

use super::*;
use unisono_nn::testing::computed_scores;

/// Length of a sequence: at least one tile for each half of a chunk.
const SEQUENCE: usize = 8 * TILE_ROWS;

/// Returns the number of scores that each rank computes, forward and back.
fn computed(
    ranks: usize,
    placement: Placement,
    transfer: KvTransfer,
    attention: Attention,
) -> Vec<[usize; 2]> {
    run_ranks(ranks, |group| {
        let (memory, rows) = (Allocator::default(), SEQUENCES * SEQUENCE / ranks);
        let tensor = |columns: usize| {
            Tensor::from_slice(&memory, rows, columns, &random_values(columns as u64, rows * columns))
        };
        let mut strategy = LocalStrategy::new(Inventory::default(), &memory, 0);
        let mut pass = Pass::new(&mut strategy, &memory, Seeds::default(), 1);
        pass.set_sequence(SEQUENCE / ranks);
        if ranks > 1 {
            let shared = ContextParallel::new(&group).with_placement(placement);
            shared.with_transfer(transfer, 1).share(&mut pass);
        }
        let start = computed_scores();
        attention.forward(&mut pass, tensor(attention.input_width())).expect("forward");
        let middle = computed_scores();
        attention.backward(&mut pass, tensor(attention.width())).expect("backward");
        [middle - start, computed_scores() - middle]
    })
}

/// Returns the position of a row in its sequence.
fn position(placement: Placement, [rank, ranks, row]: [usize; 3]) -> usize {
    let half = SEQUENCE / ranks / 2;
    match placement {
        Placement::Contiguous => 2 * half * rank + row,
        Placement::Striped => row * ranks + rank,
        Placement::ZigZag if row < half => rank * half + row,
        Placement::ZigZag => (2 * ranks - 1 - rank) * half + row - half,
    }
}

/// Returns the scores that a rank needs for causal attention: each tile of queries with all keys up
/// to its last query.
fn needed(placement: Placement, rank: usize, ranks: usize, heads: usize) -> usize {
    let rows = SEQUENCE / ranks;
    let tile = |start: usize| {
        let end = rows.min(start + TILE_ROWS);
        (end - start) * (position(placement, [rank, ranks, end - 1]) + 1)
    };
    (0..rows).step_by(TILE_ROWS).map(tile).sum::<usize>() * heads * SEQUENCES
}

const PLACEMENTS: [Placement; 3] = [Placement::Contiguous, Placement::Striped, Placement::ZigZag];

#[test]
fn tiles_beyond_the_visible_keys_are_not_computed() {
    let attention = Attention::new(2, 2);
    for ranks in [1, 2, 4] {
        for (placement, transfer) in PLACEMENTS.into_iter().flat_map(|placement| {
            [KvTransfer::Gather, KvTransfer::Ring].map(|transfer| (placement, transfer))
        }) {
            let what = format!("{ranks} ranks, {placement:?}, {transfer:?}");
            let found = computed(ranks, placement, transfer, attention);
            let expected: Vec<_> = (0..ranks).map(|rank| [needed(placement, rank, ranks, 2); 2]).collect();
            assert_eq!(found, expected, "{what}");
        }
    }
    let every_key = SEQUENCES * SEQUENCE * SEQUENCE * 2;
    let found = computed(1, Placement::Contiguous, KvTransfer::Gather, attention.bidirectional());
    assert_eq!(found, [[every_key; 2]], "attention to all positions skips nothing");
    let causal = needed(Placement::Contiguous, 0, 1, 2);
    assert_eq!(16 * causal, 9 * every_key, "36 of 64 tiles are computed");
}

#[test]
fn placements_balance_the_scores_that_are_computed() {
    for ranks in [2, 4] {
        let spread = |placement| {
            let found = computed(ranks, placement, KvTransfer::Gather, Attention::new(1, 2));
            let sums: Vec<usize> = found.into_iter().map(|[forward, backward]| forward + backward).collect();
            let largest_sum = sums.iter().max().copied().unwrap_or(0);
            largest_sum as f64 / sums.iter().min().copied().unwrap_or(0) as f64
        };
        assert!(spread(Placement::Striped) <= 1.1, "{}", spread(Placement::Striped));
        assert!(spread(Placement::ZigZag) <= 1.001, "{}", spread(Placement::ZigZag));
        let contiguous = spread(Placement::Contiguous);
        assert!((ranks as f64..2.0 * ranks as f64).contains(&contiguous), "{ranks} ranks: {contiguous}");
    }
}
