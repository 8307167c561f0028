//! Links are tried before they are used.

use crate::world::gpu;
use std::time::Duration;
use unisono_transports::p2p::{Arena, Endpoint, Layout, Peer, Sizes};

const SIZES: Sizes = Sizes {
    ranks: 2,
    channels: 1,
    slots: 3,
    slot_bytes: 1024,
    low_bytes: 64,
    window_bytes: 0,
    wide_lines: false,
};

/// Whether each of two ranks gets what the other sends, where rank 0 reaches `theirs` as rank 1's.
fn tried(arenas: &[Arena; 2], theirs: &Arena) -> [bool; 2] {
    let [zero, one] = arenas;
    std::thread::scope(|scope| {
        let first = scope.spawn(|| {
            let reached = [None, Some(zero.reach(&theirs.export().unwrap()).unwrap())];
            zero.try_links(&reached, LIMIT).unwrap()[1]
        });
        let reached = [Some(one.reach(&zero.export().unwrap()).unwrap()), None];
        let second = one.try_links(&reached, LIMIT).unwrap()[0];
        [first.join().unwrap(), second]
    })
}

const LIMIT: Duration = Duration::from_millis(500);

#[test]
fn a_link_that_leads_elsewhere_is_found() {
    let Some(gpu) = gpu() else { return };
    let layout = Layout::new(SIZES).unwrap();
    let arena = |rank| Arena::new(&gpu, rank, layout).unwrap();
    let arenas = [arena(0), arena(1)];
    assert_eq!(tried(&arenas, &arenas[1]), [true, true]);
    let arenas = [arena(0), arena(1)];
    assert!(!tried(&arenas, &arena(1))[1], "what rank 0 sends goes elsewhere");
}

#[test]
fn what_others_do_not_reach_directly_is_nobodys_choice() {
    let Some(gpu) = gpu() else { return };
    let endpoint = |all_direct| {
        let [own, other] = [0, 1].map(|rank| Arena::new(&gpu, rank, Layout::new(SIZES).unwrap()).unwrap());
        let reached = own.reach(&other.export().unwrap()).unwrap();
        Endpoint::new(own, vec![Peer::Own, Peer::Direct(reached)], all_direct).unwrap()
    };
    assert!(endpoint(true).reaches_all());
    assert!(!endpoint(false).reaches_all(), "ranks that choose differently wait for each other");
}
