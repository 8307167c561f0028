//! Links are tested before they are used.

use crate::world::gpu;
use std::time::Duration;
use unisono_transports::gpu::{DeviceGeometry, Endpoint, Layout, Peer, PeerMemory, Reach};

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
    let [zero, one] = arenas;
    std::thread::scope(|scope| {
        let first = scope.spawn(|| {
            let reached = [None, Some(zero.map(&theirs.export().unwrap()).unwrap())];
            zero.test_links(&reached, LIMIT).unwrap()[1]
        });
        let reached = [Some(one.map(&zero.export().unwrap()).unwrap()), None];
        let second = one.test_links(&reached, LIMIT).unwrap()[0];
        [first.join().unwrap(), second]
    })
}

const LIMIT: Duration = Duration::from_millis(500);

#[test]
fn misrouted_link_is_detected() {
    let Some(gpu) = gpu() else { return };
    let layout = Layout::new(SIZES).unwrap();
    let arena = |rank| PeerMemory::new(&gpu, rank, layout).unwrap();
    let arenas = [arena(0), arena(1)];
    assert_eq!(link_test(&arenas, &arenas[1]), [true, true]);
    let arenas = [arena(0), arena(1)];
    assert!(!link_test(&arenas, &arena(1))[1], "what rank 0 sends goes elsewhere");
}

#[test]
fn links_unreachable_by_any_rank_are_not_used() {
    let Some(gpu) = gpu() else { return };
    let endpoint = |reach| {
        let [own, other] =
            [0, 1].map(|rank| PeerMemory::new(&gpu, rank, Layout::new(SIZES).unwrap()).unwrap());
        let reached = own.map(&other.export().unwrap()).unwrap();
        Endpoint::new(own, vec![Peer::Local, Peer::Direct(reached)], reach).unwrap()
    };
    assert!(endpoint(Reach::complete(2)).all_peers_direct());
    let other_does_not = Reach::from_rows(2, &[1, 1, 0, 1]);
    assert!(
        !endpoint(other_does_not).all_peers_direct(),
        "ranks that choose differently wait for each other"
    );
}
