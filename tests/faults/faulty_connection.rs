//! Two ranks over a TCP connection that stalls, ends, goes silent, corrupts or repeats bytes at any
//! offset.
//!
//! The ranks get right results, or they fail in time. Only corrupted elements are undetectable:
//! TCP's checksum is their sole protection.

use super::proxy::{Fault, Record, connection, pair};
use super::times;
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use unisono::{Communicator, Config, Sum};
use unisono_transports::control::RemoteControl;
use unisono_transports::net::stream::Stream;
use unisono_transports::sys::rlimit;
use unisono_transports::tcp::TcpLink;
use unisono_transports::testing::{HANG, NEVER};
use unisono_transports::wait::AdaptiveWait;
use unisono_transports::{Fabric, Link};

const COUNT: usize = 20;
/// Timeouts of ranks whose connection may be broken for good, and of ranks whose connection is only
/// slow.
const TIMEOUT: Duration = Duration::from_millis(300);
/// Worlds at once: they wait most of the time.
const CONCURRENT_RUNS: usize = 48;
/// Descriptors of a world: sockets of two connections and of the proxy between them, and what
/// wakes its ranks.
const FDS_PER_RUN: usize = 32;
/// Descriptors of tests beside these ones.
const FDS_OF_OTHERS: usize = 256;
/// Bytes of a frame before its body, and where the length of that is.
const HEADER_BYTES: usize = 40;
const LENGTH_AT: std::ops::Range<usize> = 4..8;

/// Result of a rank: right, wrong, or an error.
#[derive(Clone, Debug, PartialEq)]
enum Outcome {
    Right,
    Wrong,
    Failed(String),
}

/// Two ranks whose messages from the first to the second one pass a proxy.
fn world(fault: Option<(usize, Fault)>, timeout: Duration) -> ([Communicator; 2], Record) {
    let config = Config::default().with_timeout(timeout);
    let (data, record) = connection(fault);
    let notes: [_; 2] = pair().into();
    let mut ends = data.into_iter().zip(notes).enumerate().map(|(rank, (data, notes))| {
        let (peer, geometry) = (1 - rank, config.geometry());
        let link = TcpLink::new(peer, &geometry, vec![Stream::from(data)]).expect("a link");
        let mut watched = link.event_fds().expect("descriptors");
        let mut links: Vec<Option<Box<dyn Link>>> = vec![None, None];
        links[peer] = Some(Box::new(link));
        let mut streams = vec![None, None];
        streams[peer] = Some(Stream::from(notes));
        let control = RemoteControl::new(streams).expect("sockets");
        watched.extend(control.event_fds().expect("descriptors"));
        let pace = Box::new(AdaptiveWait::new(2).wake_on(watched).sleep_after_yields(50));
        let control = Box::new(control);
        let mesh = Fabric {
            rank,
            ranks: 2,
            geometry,
            links,
            window: None,
            control,
            wait: pace,
            transport: "tcp",
            oversubscribed: false,
        };
        Communicator::builder().config(&config).from_fabric(mesh).expect("valid settings")
    });
    ([ends.next().expect("two"), ends.next().expect("two")], record)
}

/// A few operations of a rank, with their results compared.
fn work(comm: &Communicator) -> Outcome {
    let (mut sums, mut roots) = ([1.0 + comm.rank() as f32; COUNT], [7.0f32; COUNT]);
    let mut shares = [comm.rank() as f32; 2 * COUNT];
    let share = [comm.rank() as f32; COUNT];
    let ended = (|| {
        comm.all_reduce(&mut sums, Sum)?;
        comm.broadcast(&mut roots, 0)?;
        comm.all_gather(&share, &mut shares)?;
        comm.barrier()
    })();
    let right = sums == [3.0; COUNT] && roots == [7.0; COUNT];
    let right = right && shares[..COUNT] == [0.0; COUNT] && shares[COUNT..] == [1.0; COUNT];
    match ended {
        Err(error) => Outcome::Failed(error.to_string()),
        Ok(()) if right => Outcome::Right,
        Ok(()) => Outcome::Wrong,
    }
}

/// Returns the results of both ranks and their duration.
fn outcome(fault: Option<(usize, Fault)>, timeout: Duration) -> ([Outcome; 2], Duration) {
    let (comms, _record) = world(fault, timeout);
    let begun = Instant::now();
    let outcomes = std::thread::scope(|scope| {
        let ranks = comms.each_ref().map(|comm| scope.spawn(move || (work(comm), begun.elapsed())));
        ranks.map(|rank| rank.join().expect("no rank panics"))
    });
    let took = outcomes[0].1.max(outcomes[1].1);
    (outcomes.map(|(outcome, _)| outcome), took)
}

/// Returns the bytes that pass without a fault.
fn clean() -> Vec<u8> {
    let (comms, record) = world(None, NEVER);
    let outcomes = std::thread::scope(|scope| {
        comms
            .each_ref()
            .map(|comm| scope.spawn(move || work(comm)))
            .map(|rank| rank.join().expect("no panic"))
    });
    assert_eq!(outcomes, [Outcome::Right, Outcome::Right]);
    let passed = record.lock().expect("no panic");
    passed.clone()
}

/// The frames in `bytes`: where each begins, and how long it is.
fn frames(bytes: &[u8]) -> Vec<(usize, usize)> {
    let mut frames = Vec::new();
    let mut offset = 0;
    while offset < bytes.len() {
        let length = bytes[offset..][LENGTH_AT].try_into().expect("four bytes");
        let length =
            HEADER_BYTES + if bytes[offset] == b'm' { u32::from_le_bytes(length) as usize } else { 0 };
        frames.push((offset, length));
        offset += length;
    }
    assert_eq!(offset, bytes.len(), "frames end where the bytes do");
    frames
}

/// Returns how many worlds may run at once with the descriptors that this process may have.
fn concurrent_runs() -> usize {
    let room = rlimit::raise_fd_limit(CONCURRENT_RUNS * FDS_PER_RUN + FDS_OF_OTHERS);
    (room.saturating_sub(FDS_OF_OTHERS) / FDS_PER_RUN).clamp(1, CONCURRENT_RUNS)
}

/// Tries all of these, many at once; `allowed` says whether ranks may get this. Tests take turns,
/// because they share the descriptors of the process.
fn try_all(
    cases: impl IntoIterator<Item = (usize, Fault)>,
    timeout: Duration,
    allowed: impl Fn(usize, &Outcome) -> bool + Sync,
) -> [usize; 3] {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let cases = Mutex::new(cases.into_iter().collect::<VecDeque<_>>());
    let counts = Mutex::new([0; 3]);
    let next = || cases.lock().expect("no panic").pop_front();
    std::thread::scope(|scope| {
        let one_by_one = || {
            while let Some((offset, fault)) = next() {
                let (outcomes, took) = outcome(Some((offset, fault)), timeout);
                assert!(took < HANG, "{fault:?} at {offset}: took {took:?}: {outcomes:?}");
                for outcome in &outcomes {
                    assert!(allowed(offset, outcome), "{fault:?} at {offset}: {outcomes:?}");
                    let kind = match outcome {
                        Outcome::Right => 0,
                        Outcome::Failed(_) => 1,
                        Outcome::Wrong => 2,
                    };
                    counts.lock().expect("no panic")[kind] += 1;
                }
            }
        };
        (0..concurrent_runs()).for_each(|_| drop(scope.spawn(one_by_one)));
    });
    counts.into_inner().expect("no panic")
}

/// Every how manieth byte is tried.
fn stride() -> usize {
    times(7, 1)
}

fn is_correct_or_error(_: usize, outcome: &Outcome) -> bool {
    *outcome != Outcome::Wrong
}

#[test]
fn stalled_connection_only_delays() {
    let bytes = clean();
    let stall = |offset| (offset, Fault::Stall(Duration::from_millis(20)));
    let counts = try_all((0..bytes.len()).step_by(stride()).map(stall), NEVER, |_, outcome| {
        *outcome == Outcome::Right
    });
    println!("stalled at any of {} bytes: {counts:?} right, failed, wrong", bytes.len());
}

#[test]
fn closed_or_silent_connection_fails_in_time() {
    let bytes = clean();
    for fault in [Fault::Cut, Fault::Swallow] {
        let counts = try_all(
            (0..bytes.len()).step_by(stride()).map(|offset| (offset, fault)),
            TIMEOUT,
            is_correct_or_error,
        );
        println!("{fault:?} at any of {} bytes: {counts:?} right, failed, wrong", bytes.len());
        assert!(counts[1] > counts[0], "{fault:?}: most of them notice");
    }
}

#[test]
fn replayed_frame_is_an_error() {
    let frames = frames(&clean());
    let repeat = |&(offset, length): &(usize, usize)| (offset + length, Fault::Repeat(length));
    // After the last one nothing follows that the repetition could come before.
    let counts = try_all(frames[..frames.len() - 1].iter().map(repeat), TIMEOUT, is_correct_or_error);
    assert!(counts[1] > 0, "{counts:?}");
}

#[test]
fn corrupted_headers_never_give_wrong_results() {
    let bytes = clean();
    let frames = frames(&bytes);
    let is_head =
        |offset: usize| frames.iter().any(|&(start, _)| (start..start + HEADER_BYTES).contains(&offset));
    let bits = |offset: usize| (0..8).filter(move |bit| times(usize::from(offset % 8 == *bit), 1) == 1);
    let flips = |offset: usize| bits(offset).map(move |bit| (offset, Fault::Flip(1 << bit)));
    let heads = (0..bytes.len()).filter(|&offset| is_head(offset)).step_by(times(3, 1)).flat_map(flips);
    let counts = try_all(heads, TIMEOUT, is_correct_or_error);
    println!("a bit of a head flipped: {counts:?} right, failed, wrong");
    let elements = (0..bytes.len())
        .filter(|&offset| !is_head(offset))
        .step_by(5)
        .map(|offset| (offset, Fault::Flip(64)));
    let counts = try_all(elements, NEVER, |_, outcome| !matches!(outcome, Outcome::Failed(_)));
    println!("a bit of an element flipped: {counts:?} right, failed, wrong");
    assert!(counts[2] > 0, "an element that changes on its way is an element like another");
}
