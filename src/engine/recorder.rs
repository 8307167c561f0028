//! The flight recorder: a ring of the last operations, written by the thread that runs them, read by any other.
//!
//! Every slot has a number, which is taken away while it is written: a reader that finds the same one before
//! and after has read one operation, whole. Data races there are none, as every word is atomic.

use crate::call::Call;
use crate::flight::{Flight, Progress, Recorded};
use crate::schedule::Rank;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};
use unisono_transports::Tag;

/// Whose operations are on record.
#[derive(Clone, Debug)]
pub(crate) struct Owner {
    /// Shared by the ranks of a communicator.
    pub(crate) communicator: u64,
    pub(crate) epoch: u64,
    pub(crate) rank: Rank,
    pub(crate) ranks: usize,
    pub(crate) host: String,
    pub(crate) transport: &'static str,
}

/// The last operations of one rank.
#[derive(Debug)]
pub(crate) struct Recorder {
    owner: Owner,
    slots: Box<[Slot]>,
    born: Instant,
    /// Operations that have begun, and those of them that this rank is through with.
    begun: AtomicU64,
    ended: AtomicU64,
    error: Mutex<Option<String>>,
}

/// One operation: a cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Slot {
    /// One more than the operation's number; zero while the rest is written.
    stamp: AtomicU64,
    /// The call, as in a tag.
    call: [AtomicU64; 3],
    /// Nanoseconds; zero where the clock was not read.
    started: AtomicU64,
    ended: AtomicU64,
    /// One more than the rank; zero for none.
    peer: AtomicU64,
}

impl Recorder {
    /// Room for the last `length` operations, a power of two.
    pub(crate) fn new(owner: Owner, length: usize) -> Self {
        Self {
            owner,
            slots: (0..length.next_power_of_two()).map(|_| Slot::default()).collect(),
            born: Instant::now(),
            begun: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            error: Mutex::new(None),
        }
    }

    /// An operation begins; `peer` is who else takes part, where it is one rank.
    #[inline]
    pub(super) fn begin(&self, call: &Call, peer: Option<Rank>, timed: bool) {
        let number = self.begun.load(Ordering::Relaxed);
        let slot = self.slot(number);
        slot.stamp.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        let Tag([sequence, what, count, _]) = call.tag(0);
        slot.call[0].store(sequence, Ordering::Relaxed);
        slot.call[1].store(what, Ordering::Relaxed);
        slot.call[2].store(count, Ordering::Relaxed);
        let started = if timed || number.is_multiple_of(CLOCK_EVERY) { self.nanoseconds() } else { 0 };
        slot.started.store(started, Ordering::Relaxed);
        slot.ended.store(0, Ordering::Relaxed);
        slot.peer.store(peer.map_or(0, |peer| peer as u64 + 1), Ordering::Relaxed);
        slot.stamp.store(number + 1, Ordering::Release);
        self.begun.store(number + 1, Ordering::Release);
    }

    /// This rank is through with all that has begun.
    #[inline]
    pub(super) fn end(&self) {
        let begun = self.begun.load(Ordering::Relaxed);
        let slot = self.slot(begun.wrapping_sub(1));
        if slot.started.load(Ordering::Relaxed) != 0 {
            slot.ended.store(self.nanoseconds(), Ordering::Relaxed);
        }
        self.ended.store(begun, Ordering::Release);
    }

    /// The operation under way waits for `peer`.
    #[cold]
    pub(super) fn wait(&self, peer: Option<Rank>) {
        let slot = self.slot(self.begun.load(Ordering::Relaxed).wrapping_sub(1));
        if slot.started.load(Ordering::Relaxed) == 0 {
            slot.started.store(self.nanoseconds(), Ordering::Relaxed);
        }
        if let Some(peer) = peer {
            slot.peer.store(peer as u64 + 1, Ordering::Relaxed);
        }
    }

    /// The communicator is over.
    #[cold]
    pub(super) fn fail(&self, error: String) {
        self.error.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).get_or_insert(error);
    }

    /// What is on record.
    pub(crate) fn flight(&self, enqueued: u64) -> Flight {
        let Owner { communicator, epoch, rank, ranks, host, transport } = self.owner.clone();
        let error = self.error.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
        let begun = self.begun.load(Ordering::Acquire);
        let oldest = begun.saturating_sub(self.slots.len() as u64);
        let has_failed = error.is_some();
        let operations = (oldest..begun).filter_map(|number| self.recorded(number, has_failed)).collect();
        let now = self.born.elapsed();
        Flight { communicator, epoch, rank, ranks, host, transport, now, enqueued, error, operations }
    }

    fn recorded(&self, number: u64, has_failed: bool) -> Option<Recorded> {
        let slot = self.slot(number);
        if slot.stamp.load(Ordering::Acquire) != number + 1 {
            return None;
        }
        let [sequence, what, count] = [0, 1, 2].map(|index| slot.call[index].load(Ordering::Relaxed));
        let [started, ended, peer] =
            [&slot.started, &slot.ended, &slot.peer].map(|word| word.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        if slot.stamp.load(Ordering::Relaxed) != number + 1 {
            return None;
        }
        let progress = match number < self.ended.load(Ordering::Acquire) {
            true => Progress::Done,
            false if has_failed => Progress::Failed,
            false => Progress::Started,
        };
        let time = |nanoseconds| Some(Duration::from_nanos(nanoseconds)).filter(|time| !time.is_zero());
        Some(Recorded {
            number,
            call: Call::from_tag(&Tag([sequence, what, count, 0])),
            progress,
            started: time(started),
            ended: time(ended),
            peer: peer.checked_sub(1).map(|peer| peer as Rank),
        })
    }

    #[inline]
    fn slot(&self, number: u64) -> &Slot {
        &self.slots[number as usize & (self.slots.len() - 1)]
    }

    fn nanoseconds(&self) -> u64 {
        self.born.elapsed().as_nanos() as u64
    }
}

/// The clock is read in one of so many small operations.
const CLOCK_EVERY: u64 = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Kind;
    use unisono_cuda::DType;

    fn recorder() -> Recorder {
        let host = "here".to_owned();
        Recorder::new(Owner { communicator: 7, epoch: 0, rank: 1, ranks: 4, host, transport: "threads" }, 8)
    }

    fn call(sequence: u64) -> Call {
        Call::new(sequence, Kind::SendRecv, DType::F32, None, 0, 3 * sequence)
    }

    #[test]
    fn the_last_ones_stay_in_order_and_with_their_state() {
        let recorder = recorder();
        for sequence in 0..20 {
            recorder.begin(&call(sequence), None, false);
            recorder.end();
        }
        recorder.begin(&call(20), None, false);
        recorder.wait(Some(2));
        let flight = recorder.flight(3);
        let calls: Vec<_> = flight.operations.iter().map(|operation| operation.call).collect();
        assert_eq!(calls, (13..=20).map(call).collect::<Vec<_>>());
        let (last, before) = flight.operations.split_last().unwrap();
        assert_eq!((last.progress, last.peer, last.number), (Progress::Started, Some(2), 20));
        assert!(last.started.is_some() && last.ended.is_none());
        assert!(
            before.iter().all(|operation| operation.progress == Progress::Done && operation.peer.is_none())
        );
        let timed = |operation: &&Recorded| operation.started.is_some() && operation.ended.is_some();
        assert_eq!(before.iter().filter(timed).map(|operation| operation.number).collect::<Vec<_>>(), [16]);
        recorder.fail("why".to_owned());
        recorder.fail("too late".to_owned());
        let flight = recorder.flight(0);
        assert_eq!((flight.operations[7].progress, flight.error.as_deref()), (Progress::Failed, Some("why")));
    }

    #[test]
    fn a_reader_never_sees_two_operations_in_one() {
        let recorder = recorder();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for sequence in 0..300_000 {
                    recorder.begin(&call(sequence), None, false);
                    recorder.end();
                }
            });
            let mut seen = 0;
            while seen < 299_999 {
                for Recorded { number, call, .. } in recorder.flight(0).operations {
                    assert_eq!((call.sequence, call.count), (number, 3 * number));
                    seen = number;
                }
            }
        });
    }
}
