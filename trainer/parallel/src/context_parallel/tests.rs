//! Attention of ranks that share sequences equals that of one rank.

mod chunks;
mod overlap;
mod score_count;

use super::*;
use unisono_nn::allocator::{AllocClass, Allocator};
use unisono_nn::modules::{Module, random_values};
use unisono_nn::parameter::Inventory;
use unisono_nn::pass::Seeds;
use unisono_nn::strategy::LocalStrategy;
use unisono_nn::testing::run_ranks;

/// Queries of a tile: backward needs the scores of a tile, and their gradients.
const TILE_ROWS: usize = Attention::workspace_len(1) / 2;
const SEQUENCES: usize = 2;
const SEQUENCE: usize = 3 * TILE_ROWS;

/// Sharing of sequences between ranks.
#[derive(Clone, Copy, Debug)]
struct Sharing {
    ranks: usize,
    placement: Placement,
    transfer: KvTransfer,
    /// Neighbors in a ring that exchange heads.
    neighbors: usize,
}

/// Output and gradient of the input of all rows, and the bytes that a rank sent forward and back.
struct Found {
    values: [Vec<f32>; 2],
    sent: Vec<[u64; 2]>,
}

/// Returns the row numbers of a rank among those of all sequences.
fn rows_of(sharing: Sharing, rank: usize) -> Vec<usize> {
    let chunk = SequenceChunk { placement: sharing.placement, ..SequenceChunk::new(rank, sharing.ranks) };
    let length = chunk.length(SEQUENCE).expect("equal parts");
    let of_sequence = |number| (0..length).map(move |row| number * SEQUENCE + chunk.position(row, length));
    (0..SEQUENCES).flat_map(of_sequence).collect()
}

/// Runs forward and backward on one rank. Returns its output and gradient, and the bytes that it
/// sent in each.
fn run_rank(
    group: &Communicator,
    sharing: Sharing,
    attention: Attention,
    values: [&[f32]; 2],
    memory: &Allocator,
) -> ([Vec<f32>; 2], [u64; 2]) {
    let (memory, rows) = (memory.clone(), rows_of(sharing, group.rank()));
    let own_rows = |values: &[f32], columns: usize| {
        let part: Vec<f32> =
            rows.iter().flat_map(|row| &values[row * columns..(row + 1) * columns]).copied().collect();
        Tensor::from_slice(&memory, rows.len(), columns, &part)
    };
    let mut strategy = LocalStrategy::new(Inventory::default(), &memory, 0);
    let mut pass = Pass::new(&mut strategy, &memory, Seeds::default(), 1);
    pass.set_sequence(SEQUENCE / sharing.ranks);
    if sharing.ranks > 1 {
        let shared = ContextParallel::new(group).with_placement(sharing.placement);
        shared.with_transfer(sharing.transfer, sharing.neighbors).share(&mut pass);
    }
    let bytes = || group.traffic_stats().expect("a count").bytes;
    let start = bytes();
    let output = attention.forward(&mut pass, own_rows(values[0], attention.input_width())).expect("forward");
    let middle = bytes();
    let gradient = attention.backward(&mut pass, own_rows(values[1], attention.width())).expect("backward");
    ([output.data().to_vec(), gradient.data().to_vec()], [middle - start, bytes() - middle])
}

fn run(sharing: Sharing, attention: Attention, values: [&[f32]; 2]) -> Found {
    let parts =
        run_ranks(sharing.ranks, |group| run_rank(&group, sharing, attention, values, &Allocator::default()));
    let mut joined =
        [attention.width(), attention.input_width()].map(|columns| vec![0.0; SEQUENCES * SEQUENCE * columns]);
    for (rank, (results, _)) in parts.iter().enumerate() {
        let rows = rows_of(sharing, rank);
        for (joined, result) in joined.iter_mut().zip(results) {
            let columns = result.len() / rows.len();
            for (row, values) in rows.iter().zip(result.chunks_exact(columns)) {
                joined[row * columns..(row + 1) * columns].copy_from_slice(values);
            }
        }
    }
    Found { values: joined, sent: parts.into_iter().map(|(_, sent)| sent).collect() }
}

const ALONE: Sharing =
    Sharing { ranks: 1, placement: Placement::Contiguous, transfer: KvTransfer::Gather, neighbors: 1 };

/// Returns all ways of sharing between 2 to 8 ranks.
fn all_sharings() -> Vec<Sharing> {
    let ranks = [2, 3, 4, 8].into_iter().flat_map(|ranks| {
        let transfers = [KvTransfer::Gather, KvTransfer::Ring, KvTransfer::Ulysses];
        transfers.map(|transfer| Sharing { ranks, transfer, ..ALONE })
    });
    let rings_of_groups = [(4, 2), (6, 2), (6, 3), (8, 2), (8, 4)].map(|(ranks, neighbors)| Sharing {
        ranks,
        neighbors,
        transfer: KvTransfer::Ring,
        ..ALONE
    });
    let placements = [Placement::Contiguous, Placement::Striped, Placement::ZigZag];
    let placed = |sharing| placements.map(|placement| Sharing { placement, ..sharing });
    ranks.chain(rings_of_groups).flat_map(placed).collect()
}

#[test]
fn shared_sequences_match_whole_ones() {
    let grouped = Attention::new(4, 3).with_kv_heads(2);
    for attention in [grouped, grouped.bidirectional(), Attention::new(2, 5)] {
        let columns = [attention.input_width(), attention.width()];
        let [input, slope] =
            columns.map(|columns| random_values(columns as u64, SEQUENCES * SEQUENCE * columns));
        let expected = run(ALONE, attention, [&input, &slope]);
        for sharing in all_sharings() {
            let found = run(sharing, attention, [&input, &slope]);
            for (found, expected) in found.values.iter().zip(&expected.values) {
                let most = expected.iter().fold(0.0f32, |most, value| most.max(value.abs()));
                let is_near = |(left, right): (&f32, &f32)| (left - right).abs() <= 1e-5 * most;
                assert!(found.iter().zip(expected).all(is_near), "{sharing:?}, {attention:?}");
            }
        }
    }
}

#[test]
fn heads_are_exchanged_for_positions_in_two_messages_each_way() {
    let attention = Attention::new(4, 3).with_kv_heads(2);
    let columns = [attention.input_width(), attention.width()];
    let [input, slope] = columns.map(|columns| random_values(1, SEQUENCES * SEQUENCE * columns));
    let sharing = Sharing { ranks: 2, placement: Placement::Striped, transfer: KvTransfer::Ulysses, ..ALONE };
    let elements = SEQUENCES * SEQUENCE / 2 * (columns[0] + columns[1]) / 2;
    for sent in run(sharing, attention, [&input, &slope]).sent {
        assert_eq!(sent, [(elements * size_of::<f32>()) as u64; 2], "half of the own rows");
    }
}

#[test]
fn ring_sends_a_block_to_one_neighbor_per_hop() {
    let attention = Attention::new(4, 3).with_kv_heads(2);
    let columns = [attention.input_width(), attention.width()];
    let [input, slope] = columns.map(|columns| random_values(1, SEQUENCES * SEQUENCE * columns));
    for ranks in [2, 3, 4] {
        let sharing = Sharing { ranks, placement: Placement::ZigZag, transfer: KvTransfer::Ring, ..ALONE };
        let block = SEQUENCES * SEQUENCE / ranks * attention.kv_width() * size_of::<f32>();
        let hops = ranks as u64 - 1;
        for [forward, backward] in run(sharing, attention, [&input, &slope]).sent {
            assert_eq!(forward, hops * block as u64, "{ranks} ranks: (N-1) KV");
            assert_eq!(backward, (hops + ranks as u64) * block as u64, "keys, and gradients that return");
        }
    }
}

/// The workspace is by far the largest part with one head of two features.
#[test]
fn ring_rank_needs_its_share_of_the_workspace() {
    let attention = Attention::new(1, 2);
    let columns = [attention.input_width(), attention.width()];
    let [input, slope] = columns.map(|columns| random_values(1, SEQUENCES * SEQUENCE * columns));
    let peak = |sharing: Sharing| {
        let of_ranks = run_ranks(sharing.ranks, |group| {
            let memory = Allocator::default();
            run_rank(&group, sharing, attention, [&input, &slope], &memory);
            memory.usage(AllocClass::Activations).peak
        });
        of_ranks.into_iter().max().expect("a rank")
    };
    let alone = peak(ALONE);
    assert!(alone > Attention::workspace_len(SEQUENCE) * size_of::<f32>());
    for (ranks, neighbors) in [(4, 1), (8, 1), (8, 2)] {
        let transfer = KvTransfer::Ring;
        let shared = peak(Sharing { ranks, neighbors, transfer, ..ALONE });
        let share = alone * neighbors / ranks;
        assert!(shared < 2 * share, "{ranks} ranks, groups of {neighbors}: {shared} bytes of {alone}");
    }
}

#[test]
fn groups_of_neighbors_send_heads_within_and_blocks_between() {
    let attention = Attention::new(4, 3).with_kv_heads(2);
    let columns = [attention.input_width(), attention.width()];
    let [input, slope] = columns.map(|columns| random_values(1, SEQUENCES * SEQUENCE * columns));
    for (ranks, ring) in [(4, 2), (8, 4)] {
        let sharing = Sharing { ranks, transfer: KvTransfer::Ring, neighbors: 2, ..ALONE };
        let rows = SEQUENCES * SEQUENCE / ranks;
        // Half of the rows' heads to the neighbor, and the keys of half of the heads round the
        // ring.
        let exchanged = rows * (columns[0] + columns[1]) / 2;
        let block = rows * attention.kv_width();
        let bytes = |elements: usize| (elements * size_of::<f32>()) as u64;
        for [forward, backward] in run(sharing, attention, [&input, &slope]).sent {
            assert_eq!(forward, bytes(exchanged + (ring - 1) * block), "{ranks} ranks");
            assert_eq!(backward, bytes(exchanged + (2 * ring - 1) * block), "{ranks} ranks");
        }
    }
}

/// Returns the number of scores that each rank computes.
fn scores(ranks: usize, placement: Placement) -> Vec<usize> {
    let chunk = |index| SequenceChunk { placement, ..SequenceChunk::new(index, ranks) };
    let length = SEQUENCE / ranks;
    (0..ranks).map(|rank| (0..length).map(|row| chunk(rank).position(row, length) + 1).sum()).collect()
}

#[test]
fn striped_and_zig_zag_placements_balance_causal_work() {
    for ranks in [2, 3, 4, 8] {
        let spread = |placement| {
            let scores = scores(ranks, placement);
            *scores.iter().max().unwrap() as f64 / *scores.iter().min().unwrap() as f64
        };
        assert!(spread(Placement::Striped) <= 1.1, "{}", spread(Placement::Striped));
        assert!(spread(Placement::ZigZag) <= 1.001);
        let contiguous = spread(Placement::Contiguous);
        assert!((ranks as f64..2.0 * ranks as f64).contains(&contiguous), "{ranks} ranks: {contiguous}");
    }
}
