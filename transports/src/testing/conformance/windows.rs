//! Cases about windows. A fabric without windows passes them.

use crate::testing::conformance::test_rank::{TestRank, run};
use crate::testing::conformance::{FabricFactory, SMALL_GEOMETRY, pattern};
use crate::{SlotClass, Tag, Window};
use std::panic::{AssertUnwindSafe, catch_unwind};
use unisono_reducers::{Source, Target, copy};

/// Checks data in a rank's own window and in a peer's, and the tag.
pub fn signal_publishes_prior_writes(make: FabricFactory<'_>) {
    run_with_windows(make, 2, |side| {
        let (rank, peer) = (side.fabric.rank, 1 - side.fabric.rank);
        let half = SMALL_GEOMETRY.window_bytes / 2;
        let got = |turn: u64, rank| pattern(turn << 8 | rank as u64, half);
        let put = |turn: u64, rank| pattern(turn << 9 | rank as u64, half);
        for turn in 1..=300u64 {
            let bank = (turn % 2) as usize;
            let publisher = window(side);
            copy(publisher.target(rank, 0, half), Source::from(&got(turn, rank)[..]));
            copy(publisher.target(peer, half, half), Source::from(&put(turn, rank)[..]));
            publisher.set_tag(1, bank, &Tag([turn, rank as u64, 3, 4]));
            publisher.signal(1, turn);
            wait(side, "a signal", |window| window.last_signal(peer, 1) >= turn);
            assert_eq!(window(side).tag(peer, 1, bank), Tag([turn, peer as u64, 3, 4]));
            assert!(read(window(side), peer, 0, half) == got(turn, peer), "a get in turn {turn}");
            assert!(read(window(side), rank, half, half) == put(turn, peer), "a put in turn {turn}");
            // The next turn overwrites data that the peer may still be reading.
            window(side).complete(1, turn);
            wait(side, "the peer to be done", |window| window.completions(peer, 1) >= turn);
        }
    });
}

/// Checks that signals of two channels and both parities are independent, and equal what was
/// published.
pub fn parities_and_lanes_are_independent(make: FabricFactory<'_>) {
    run_with_windows(make, 3, |side| {
        let (rank, ranks) = (side.fabric.rank, side.fabric.ranks);
        let last = |turn: u64| 2 * turn + turn % 2;
        for turn in 1..=400u64 {
            let (bank, channel) = ((turn / 2 % 2) as usize, (turn % 2) as usize);
            // Some turns have two signals, some no tag of their own.
            let tagged = turn % 3 != 0;
            if tagged {
                window(side).set_tag(channel, bank, &Tag([turn; 4]));
            }
            window(side).signal(channel, 2 * turn);
            window(side).signal(channel, last(turn));
            for peer in (0..ranks).filter(|&peer| peer != rank) {
                wait(side, "a signal", |window| window.last_signal(peer, channel) >= 2 * turn);
                let (here, there) =
                    (window(side).last_signal(peer, channel), window(side).last_signal(peer, 1 - channel));
                // No rank goes on to the next turn before this rank has completed this one.
                assert!(here == 2 * turn || here == last(turn), "turn {turn}: {here}");
                assert_eq!(there, last(turn - 1), "the other channel in turn {turn}");
                if tagged {
                    assert_eq!(window(side).tag(peer, channel, bank), Tag([turn; 4]));
                }
            }
            window(side).complete(channel, turn);
            for peer in 0..ranks {
                wait(side, "everybody to be done", |window| window.completions(peer, channel) >= turn);
            }
        }
    });
}

/// Checks that eager messages arrive whole, in their slots, and stay until all ranks have seen
/// them.
pub fn eager_slots_carry_their_data(make: FabricFactory<'_>) {
    run_with_windows(make, 3, |side| {
        // Several of each slot class in turn, as they share stamps and counts.
        for number in 0..3 * SlotClass::MAX_SLOTS {
            let cell = SlotClass::ALL[(number / 5) as usize % SlotClass::ALL.len()];
            publish_and_read(side, cell, number);
        }
    });
}

fn publish_and_read(side: &mut TestRank, cell: SlotClass, number: u64) {
    let (rank, ranks) = (side.fabric.rank, side.fabric.ranks);
    let bytes = cell.bytes() - 1;
    let data = |rank: usize| pattern(number << 4 | rank as u64, bytes);
    for peer in 0..ranks {
        wait(side, "the cell to be free", |window| window.acked(peer) + cell.slots(ranks) > number);
    }
    // Sooner or later than it should be, which changes no data that is there.
    if number >= rank as u64 * SlotClass::MAX_SLOTS {
        window(side).prepare_slots(cell).expect("address space");
    }
    copy(window(side).own_slot(cell, number, 1, bytes), Source::from(&data(rank)[..]));
    window(side).publish(cell, number, 100 + number, &Tag([number, rank as u64, 3, 4]));
    for peer in 0..ranks {
        wait(side, "a post", |window| window.published(peer, cell, number) == 100 + number);
        wait(side, "its stamp for all", |window| {
            window.published(peer, SlotClass::Inline, number) == 100 + number
        });
        assert_eq!(window(side).published_tag(peer, number), Tag([number, peer as u64, 3, 4]));
        let mut found = vec![0; bytes];
        copy(Target::from(&mut found[..]), window(side).slot(peer, cell, number, 1, bytes));
        assert!(found == data(peer), "post {number} of rank {peer}");
    }
    window(side).set_acked(number + 1);
}

/// Checks that the last hint of every rank arrives at some time.
pub fn hints_are_delivered(make: FabricFactory<'_>) {
    run_with_windows(make, 3, |side| {
        let (rank, ranks) = (side.fabric.rank as u64, side.fabric.ranks);
        window(side).set_hint(1 + rank);
        window(side).set_hint(5 + rank);
        for peer in 0..ranks {
            wait(side, "a hint", |window| window.hint(peer) == 5 + peer as u64);
        }
    });
}

/// Checks that nothing outside a window can be reached with any offset.
pub fn window_access_is_bounds_checked(make: FabricFactory<'_>) {
    run_with_windows(make, 2, |side| {
        let (window, end) = (&*window(side), SMALL_GEOMETRY.window_bytes);
        assert_eq!((window.bytes(), window.source(1, end, 0).len()), (end, 0));
        for (offset, bytes) in [(end, 1), (end - 8, 9), (0, end + 1), (usize::MAX, 2), (8, usize::MAX)] {
            let refused = catch_unwind(AssertUnwindSafe(|| window.source(0, offset, bytes).len()));
            assert!(refused.is_err(), "{bytes} bytes at {offset} were read");
            let refused = catch_unwind(AssertUnwindSafe(|| window.target(1, offset, bytes).len()));
            assert!(refused.is_err(), "{bytes} bytes at {offset} were written");
        }
        for cell in SlotClass::ALL {
            let end = cell.bytes();
            for (offset, bytes) in [(end, 1), (0, end + 1), (usize::MAX, 2)] {
                let refused = catch_unwind(AssertUnwindSafe(|| window.slot(1, cell, 0, offset, bytes).len()));
                assert!(refused.is_err(), "{bytes} bytes at {offset} of a cell were read");
                let refused =
                    catch_unwind(AssertUnwindSafe(|| window.own_slot(cell, 7, offset, bytes).len()));
                assert!(refused.is_err(), "{bytes} bytes at {offset} of a cell were written");
            }
        }
    });
}

fn run_with_windows(make: FabricFactory<'_>, ranks: usize, body: impl Fn(&mut TestRank) + Sync) {
    run(make, ranks, SMALL_GEOMETRY, |mut side| {
        if side.fabric.window.is_some() {
            body(&mut side);
        }
        ((), Some(side))
    });
}

fn window(side: &mut TestRank) -> &mut Window {
    side.fabric.window.as_mut().expect("a window")
}

fn wait(side: &mut TestRank, what: &str, ready: impl Fn(&Window) -> bool) {
    side.wait_until(what, |fabric| Ok(fabric.window.as_ref().filter(|window| ready(window)).map(|_| ())));
}

fn read(window: &Window, rank: usize, offset: usize, bytes: usize) -> Vec<u8> {
    let mut found = vec![0; bytes];
    copy(Target::from(&mut found[..]), window.source(rank, offset, bytes));
    found
}
