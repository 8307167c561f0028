//! A rank that is told the calls of its peers before it has made these calls itself.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use unisono::{Communicator, Config};
use unisono_reducers::{Source, Target};
use unisono_transports::loopback::local_fabrics;
use unisono_transports::testing::HANG;
use unisono_transports::{ControlChannel, Fabric, Header, Link, PeerEvent, Result, Tag};

const RANKS: usize = 3;
/// Kind of the control message that tells a call.
const CALLED: u8 = 6;

/// The progress of the slow rank.
#[derive(Default)]
struct Progress {
    /// True once the rank has read the calls that it is to read while it makes its first call.
    has_read: AtomicBool,
    /// True once the rank makes the call in which it finds that earlier calls differ.
    is_last: AtomicBool,
}

/// A link on which nothing arrives before the slow rank has read the calls.
struct SlowLink {
    link: Box<dyn Link>,
    progress: Arc<Progress>,
}

impl Link for SlowLink {
    fn try_send<'a>(
        &mut self,
        lane: usize,
        tag: &Tag,
        bytes: usize,
        parts: &mut dyn Iterator<Item = Source<'a>>,
    ) -> Result<bool> {
        self.link.try_send(lane, tag, bytes, parts)
    }

    fn header(&mut self, lane: usize) -> Result<Option<Header>> {
        match self.progress.has_read.load(Ordering::Acquire) {
            true => self.link.header(lane),
            false => Ok(None),
        }
    }

    fn body(&mut self, lane: usize) -> Result<Option<Source<'_>>> {
        self.link.body(lane)
    }

    fn release(&mut self, lane: usize) {
        self.link.release(lane);
    }

    fn recv_into(&mut self, lane: usize, target: Target<'_>) -> Result<bool> {
        self.link.recv_into(lane, target)
    }

    fn progress(&mut self) -> Result<()> {
        self.link.progress()
    }
}

/// The control channel of the slow rank. It reads the first calls of one peer in its first call,
/// and the remaining ones in its last call. All other messages arrive after these.
struct SlowControl {
    control: Box<dyn ControlChannel>,
    progress: Arc<Progress>,
    /// Number of calls that the rank reads early.
    early: usize,
    /// Calls read so far, by peer.
    told: [usize; RANKS],
    /// The peer whose calls are read in two parts.
    teller: Option<usize>,
    /// The remaining calls of that peer.
    calls: VecDeque<PeerEvent>,
    held: VecDeque<PeerEvent>,
    is_released: bool,
}

impl ControlChannel for SlowControl {
    fn post(&mut self, message: &[u8]) {
        self.control.post(message);
    }

    fn poll(&mut self) -> Option<PeerEvent> {
        while let Some(event) = self.control.poll() {
            match caller(&event) {
                Some(peer) if self.teller.is_none() => {
                    self.told[peer] += 1;
                    if self.told[peer] == self.early {
                        self.teller = Some(peer);
                        self.progress.has_read.store(true, Ordering::Release);
                    }
                    return Some(event);
                }
                Some(peer) if self.teller == Some(peer) => self.calls.push_back(event),
                _ => self.held.push_back(event),
            }
        }
        self.is_released |= self.progress.is_last.load(Ordering::Acquire) && !self.calls.is_empty();
        if !self.is_released {
            return None;
        }
        self.calls.pop_front().or_else(|| self.held.pop_front())
    }
}

/// Returns the rank that tells a call, if the event is such a message.
fn caller(event: &PeerEvent) -> Option<usize> {
    match event {
        PeerEvent::Message { from, bytes } if bytes.first() == Some(&CALLED) => Some(*from),
        _ => None,
    }
}

fn slow_fabric(fabric: Fabric, early: usize, progress: &Arc<Progress>) -> Fabric {
    let slow = |link: Option<Box<dyn Link>>| {
        let progress = Arc::clone(progress);
        link.map(|link| Box::new(SlowLink { link, progress }) as Box<dyn Link>)
    };
    let control = SlowControl {
        control: fabric.control,
        progress: Arc::clone(progress),
        early,
        told: [0; RANKS],
        teller: None,
        calls: VecDeque::new(),
        held: VecDeque::new(),
        is_released: false,
    };
    let links = fabric.links.into_iter().map(slow).collect();
    Fabric { links, control: Box::new(control), ..fabric }
}

/// Makes one call that is alike on all ranks, five that differ, and one that finds the difference.
fn calls(comm: &Communicator, progress: &Progress) -> unisono::Result<()> {
    comm.broadcast(&mut [1.0f32; 8], 1)?;
    // Every rank keeps its own data.
    (0..5).try_for_each(|_| comm.broadcast(&mut [1.0f32; 8], comm.rank()))?;
    if comm.rank() == 0 {
        progress.is_last.store(true, Ordering::Release);
    }
    // Its messages have a lane of their own, so no rank finds a message of a broadcast there.
    comm.barrier_timeout(HANG)
}

/// Returns the errors of all ranks. Rank 0 reads `early` calls of a peer in its first call.
fn errors(early: usize) -> Vec<String> {
    let config = Config::default().with_timeout(HANG);
    let progress = Arc::new(Progress::default());
    let fabrics = local_fabrics(RANKS, config.geometry(), 1, false).expect("loopback");
    let end = Barrier::new(RANKS);
    std::thread::scope(|scope| {
        let (config, progress, end) = (&config, &progress, &end);
        let start = |(rank, fabric): (usize, Fabric)| {
            let fabric = if rank == 0 { slow_fabric(fabric, early, progress) } else { fabric };
            scope.spawn(move || {
                let comm =
                    Communicator::builder().config(config).from_fabric(fabric).expect("valid settings");
                let result = calls(&comm, progress);
                // No rank leaves before all have ended, so that its end is not what the others see.
                end.wait();
                result.expect_err("the calls differ").to_string()
            })
        };
        let threads: Vec<_> = fabrics.into_iter().enumerate().map(start).collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    })
}

#[test]
fn calls_told_early_are_compared_once_they_are_made() {
    for early in 2..=5 {
        for (rank, text) in errors(early).iter().enumerate() {
            let is_first = text.contains("called broadcast #1 ") && !text.contains("called broadcast #2 ");
            assert!(is_first, "{early} calls told early, rank {rank}: {text}");
        }
    }
}
