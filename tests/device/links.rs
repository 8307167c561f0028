//! Links are tested before they are used.

use crate::world::gpu;
use std::time::Duration;
use unisono_cuda::test_gpu::{other_gpu, test_gpu};
use unisono_transports::gpu::{DeviceGeometry, Endpoint, Layout, Peer, PeerMemory, Reach, Reserve};

const SIZES: DeviceGeometry = DeviceGeometry {
    ranks: 2,
    channels: 1,
    slots: 3,
    slot_bytes: 1024,
    ll_bytes: 64,
    window_bytes: 0,
    ll128: false,
};

/// Returns whether each of two ranks receives the other's data, where rank 0 uses `theirs` as rank
/// 1's endpoint.
fn link_test(arenas: &[PeerMemory; 2], theirs: &PeerMemory) -> [bool; 2] {
    let [first_arena, second_arena] = arenas;
    std::thread::scope(|scope| {
        let first = scope.spawn(|| {
            let reached = [None, Some(first_arena.map(&theirs.export().unwrap()).unwrap())];
            first_arena.prepare_link_test(&reached).unwrap().expect("two GPUs").run(LIMIT).unwrap()[1]
        });
        let reached = [Some(second_arena.map(&first_arena.export().unwrap()).unwrap()), None];
        let second =
            second_arena.prepare_link_test(&reached).unwrap().expect("two GPUs").run(LIMIT).unwrap()[0];
        [first.join().unwrap(), second]
    })
}

const RESERVE: Reserve = Reserve { table_bytes: 4096, scratch_bytes: 1024, scratch_chunks: 1 };
const LIMIT: Duration = Duration::from_millis(500);

#[test]
fn misrouted_link_is_detected() {
    let Some(first) = test_gpu(2) else { return };
    let Some(second) = other_gpu() else { return };
    first.enable_peer_access(&second).unwrap();
    second.enable_peer_access(&first).unwrap();
    let gpus = [first, second];
    let layout = Layout::new(SIZES).unwrap();
    let arena = |rank: usize| PeerMemory::new(&gpus[rank], rank, layout).unwrap();
    let arenas = [arena(0), arena(1)];
    assert_eq!(link_test(&arenas, &arenas[1]), [true, true]);
    let arenas = [arena(0), arena(1)];
    assert!(!link_test(&arenas, &arena(1))[1], "what rank 0 sends goes elsewhere");
}

#[test]
fn memory_on_the_same_gpu_needs_no_test() {
    let Some(gpu) = gpu() else { return };
    let [arena, other] = [0, 1].map(|rank| PeerMemory::new(&gpu, rank, Layout::new(SIZES).unwrap()).unwrap());
    let reached = [None, Some(arena.map(&other.export().unwrap()).unwrap())];
    assert!(arena.prepare_link_test(&reached).unwrap().is_none());
}

#[test]
fn links_unreachable_by_any_rank_are_not_used() {
    let Some(gpu) = gpu() else { return };
    let endpoint = |reach| {
        let [arena, other] =
            [0, 1].map(|rank| PeerMemory::new(&gpu, rank, Layout::new(SIZES).unwrap()).unwrap());
        let reached = arena.map(&other.export().unwrap()).unwrap();
        Endpoint::new(arena, vec![Peer::Local, Peer::Direct(reached)], reach, RESERVE).unwrap()
    };
    assert!(endpoint(Reach::complete(2)).all_peers_direct());
    let other_does_not = Reach::from_rows(2, &[1, 1, 0, 1]);
    assert!(
        !endpoint(other_does_not).all_peers_direct(),
        "ranks that choose differently wait for each other"
    );
}
