//! The flight recorder, which is a ring of the last operations. The thread that runs them writes
//! it, and any thread can read it.
//!
//! Every slot is a sequence lock. Its number is zero while the slot is written. A reader that finds
//! the same number before and after it reads the slot has read one whole operation. There is no
//! data race, because every word is atomic.

use crate::error::Error;
use crate::flight::{FlightRecord, OpRecord, OpState};
use crate::op_desc::OpDesc;
use crate::schedule::Rank;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use unisono_transports::Tag;

/// The rank and the communicator that a record belongs to.
#[derive(Clone, Debug)]
pub(crate) struct Owner {
    /// Identifier that the ranks of a communicator share.
    pub(crate) communicator: u64,
    pub(crate) epoch: u64,
    pub(crate) rank: Rank,
    pub(crate) ranks: usize,
    pub(crate) host: String,
    pub(crate) transport: &'static str,
}

/// The last operations of one rank, numbered from one.
#[derive(Debug)]
pub(crate) struct Recorder {
    owner: Owner,
    slots: [Slot; SLOTS],
    /// Times of the operations in the slots with the same index.
    times: [Times; SLOTS],
    created: Instant,
    /// Number of the last complete operation.
    ended: AtomicU64,
    error: Mutex<Option<Error>>,
    /// Numbers of operations, and the label from that one on.
    labels: Mutex<VecDeque<(u64, Option<Arc<str>>)>>,
}

/// The record of one operation.
#[derive(Debug, Default)]
struct Slot {
    /// Number of the operation; zero while the rest is written.
    seq: AtomicU64,
    /// The operation as the first three words of its tag.
    desc_words: [AtomicU64; 3],
}

impl Slot {
    fn desc(&self) -> OpDesc {
        let [sequence, what, count] = [0, 1, 2].map(|index| self.desc_words[index].load(Ordering::Relaxed));
        OpDesc::from_tag(&Tag([sequence, what, count, 0]))
    }
}

/// The times and the peer of one operation.
#[derive(Debug, Default)]
struct Times {
    /// Number of the operation; zero while the rest is written.
    seq: AtomicU64,
    /// Nanoseconds since `created`; zero if the clock was not read.
    started: AtomicU64,
    ended: AtomicU64,
    /// Rank plus one; zero for none.
    peer: AtomicU64,
}

/// A copy of the words of [`Times`], except for the number.
#[derive(Clone, Copy, Debug, Default)]
struct TimeWords {
    started: u64,
    ended: u64,
    peer: u64,
}

impl Recorder {
    /// Creates an empty record.
    pub(crate) fn new(owner: Owner) -> Self {
        Self {
            owner,
            slots: std::array::from_fn(|_| Slot::default()),
            times: std::array::from_fn(|_| Times::default()),
            created: Instant::now(),
            ended: AtomicU64::new(0),
            error: Mutex::new(None),
            labels: Mutex::default(),
        }
    }

    pub(crate) fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Records the beginning of an operation.
    #[inline]
    pub(crate) fn begin(&self, number: u64, call: &OpDesc) {
        let slot = &self.slots[number as usize % SLOTS];
        slot.seq.store(0, Ordering::Relaxed);
        // The fence keeps the words below behind the zero. Else a reader could take new words for
        // those of the operation before.
        fence(Ordering::Release);
        let Tag([sequence, what, count, _]) = call.tag(0);
        slot.desc_words[0].store(sequence, Ordering::Relaxed);
        slot.desc_words[1].store(what, Ordering::Relaxed);
        slot.desc_words[2].store(count, Ordering::Relaxed);
        slot.seq.store(number, Ordering::Release);
        // Two readings of the clock would take a fifth of the time of the smallest operation, so
        // most operations go without: docs/decisions/0012-flight-recorder-samples-the-clock.md.
        if number.is_multiple_of(CLOCK_INTERVAL) {
            self.start_clock(number);
        }
    }

    /// Sets the label of the operations from `number` on, and returns the former one.
    pub(crate) fn exchange_label(&self, number: u64, label: Option<Arc<str>>) -> Option<Arc<str>> {
        let mut labels = self.labels();
        let former = labels.back().and_then(|(_, label)| label.clone());
        if former != label {
            // An entry says what holds until the next one; the ring has room for so many
            // operations.
            labels.retain(|&(start, _)| start < number);
            labels.push_back((number, label));
            if labels.len() > SLOTS {
                labels.pop_front();
            }
        }
        former
    }

    fn labels(&self) -> MutexGuard<'_, VecDeque<(u64, Option<Arc<str>>)>> {
        self.labels.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Returns the label of an operation.
    fn label_of(&self, number: u64) -> Option<Arc<str>> {
        let labels = self.labels();
        labels.iter().rev().find(|(start, _)| *start <= number).and_then(|(_, label)| label.clone())
    }

    /// Records the time at which an operation begins.
    #[cold]
    pub(crate) fn start_clock(&self, number: u64) {
        self.write_times(number, self.elapsed_ns(), 0);
    }

    /// Records the other rank of a send or receive.
    pub(crate) fn set_peer(&self, number: u64, peer: Rank) {
        self.write_times(number, 0, peer as u64 + 1);
    }

    fn write_times(&self, number: u64, started: u64, peer: u64) {
        let times = self.times(number);
        times.seq.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        times.started.store(started, Ordering::Relaxed);
        times.ended.store(0, Ordering::Relaxed);
        times.peer.store(peer, Ordering::Relaxed);
        times.seq.store(number, Ordering::Release);
    }

    /// Returns the recorded operation with the number of `other`. Only the recording thread may
    /// call it.
    #[cold]
    pub(crate) fn find_op(&self, other: &OpDesc) -> Option<OpDesc> {
        let recorded = self.slots.iter().filter(|slot| slot.seq.load(Ordering::Relaxed) > 0);
        recorded
            .map(Slot::desc)
            .find(|call| call.shares_sequence_with(other) && call.sequence() == other.sequence())
    }

    /// Returns the last `count` recorded operations of all ranks before `op`, the oldest first.
    ///
    /// Only the recording thread may call it.
    #[cold]
    pub(crate) fn calls_before(&self, op: &OpDesc, count: usize) -> Vec<OpDesc> {
        let recorded = self.slots.iter().filter(|slot| slot.seq.load(Ordering::Relaxed) > 0).map(Slot::desc);
        let earlier =
            recorded.filter(|call| call.shares_sequence_with(op) && call.sequence() < op.sequence());
        let mut calls: Vec<OpDesc> = earlier.collect();
        calls.sort_unstable_by_key(|call| call.sequence());
        // Every message of an operation between pairs of ranks has a record.
        calls.dedup_by_key(|call| call.sequence());
        calls.split_off(calls.len().saturating_sub(count))
    }

    /// Records that an operation and all before it are complete.
    #[inline]
    pub(crate) fn complete(&self, number: u64) {
        self.ended.store(number, Ordering::Release);
    }

    /// Records the time at which an operation ends.
    pub(crate) fn stop_clock(&self, number: u64) {
        self.times(number).ended.store(self.elapsed_ns(), Ordering::Relaxed);
    }

    /// Records that the current operation waits for `peer`.
    #[cold]
    pub(crate) fn mark_waiting(&self, peer: Option<Rank>) {
        let ended = self.ended.load(Ordering::Relaxed);
        let stamp = |slot: &&Slot| slot.seq.load(Ordering::Relaxed);
        let under_way = self.slots.iter().filter(|slot| stamp(slot) > ended).min_by_key(stamp);
        let Some((slot, number)) = under_way.map(|slot| (slot, stamp(&slot))) else { return };
        let times = self.times(number);
        if times.seq.load(Ordering::Relaxed) != number {
            self.write_times(number, 0, 0);
        }
        if times.started.load(Ordering::Relaxed) == 0 {
            times.started.store(self.elapsed_ns(), Ordering::Relaxed);
        }
        // The peer of a message is recorded already.
        if let Some(peer) = peer.filter(|_| slot.desc().is_collective()) {
            times.peer.store(peer as u64 + 1, Ordering::Relaxed);
        }
    }

    /// Records the error that ended the communicator. The first one is kept.
    #[cold]
    pub(crate) fn set_error(&self, error: Error) {
        self.error.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).get_or_insert(error);
    }

    /// Returns the error that ended the communicator, if one did.
    pub(crate) fn error(&self) -> Option<Error> {
        self.error.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }

    /// Returns the rank that a recorded operation waited for last, or the other rank of a message.
    pub(crate) fn waited_for(&self, number: u64) -> Option<Rank> {
        self.read_times(number).and_then(|words| rank_of(words.peer))
    }

    /// Returns the recorded operations, oldest first.
    pub(crate) fn snapshot(&self, enqueued: u64) -> FlightRecord {
        let Owner { communicator, epoch, rank, ranks, host, transport } = self.owner.clone();
        let error = self.error().map(|error| error.to_string());
        let has_failed = error.is_some();
        let recorded = self.slots.iter().filter_map(|slot| self.op_record(slot, has_failed));
        let mut operations: Vec<OpRecord> = recorded.collect();
        operations.sort_unstable_by_key(|operation| operation.number);
        let now = self.created.elapsed();
        FlightRecord { communicator, epoch, rank, ranks, host, transport, now, enqueued, error, operations }
    }

    fn op_record(&self, slot: &Slot, has_failed: bool) -> Option<OpRecord> {
        let number = Some(slot.seq.load(Ordering::Acquire)).filter(|number| *number > 0)?;
        let call = slot.desc();
        let TimeWords { started, ended, peer } = self.read_times(number).unwrap_or_default();
        // The words are read before the number is read again. If the number is still the same,
        // nobody has written in between.
        fence(Ordering::Acquire);
        if slot.seq.load(Ordering::Relaxed) != number {
            return None;
        }
        let progress = match number <= self.ended.load(Ordering::Acquire) {
            true => OpState::Done,
            false if has_failed => OpState::Failed,
            false => OpState::Started,
        };
        let time = |nanoseconds| Some(Duration::from_nanos(nanoseconds)).filter(|time| !time.is_zero());
        Some(OpRecord {
            number,
            op: call,
            state: progress,
            started: time(started),
            ended: time(ended),
            peer: rank_of(peer),
            label: self.label_of(number),
        })
    }

    /// Returns the times and the peer of an operation, if they are recorded.
    fn read_times(&self, number: u64) -> Option<TimeWords> {
        let Times { seq: stamp, started, ended, peer } = self.times(number);
        let is_its = |order| stamp.load(order) == number;
        if !is_its(Ordering::Acquire) {
            return None;
        }
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let words = TimeWords { started: load(started), ended: load(ended), peer: load(peer) };
        fence(Ordering::Acquire);
        is_its(Ordering::Relaxed).then_some(words)
    }

    fn times(&self, number: u64) -> &Times {
        &self.times[number as usize % SLOTS]
    }

    fn elapsed_ns(&self) -> u64 {
        self.created.elapsed().as_nanos() as u64
    }
}

/// Returns the rank that a word of [`Times`] names.
fn rank_of(peer: u64) -> Option<Rank> {
    peer.checked_sub(1).map(|peer| peer as Rank)
}

/// Number of recorded operations. Two of them share a cache line.
const SLOTS: usize = 64;
/// Small operations between two readings of the clock.
const CLOCK_INTERVAL: u64 = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op_desc::OpKind;
    use unisono_reducers::DType;

    fn recorder() -> Recorder {
        let host = "here".to_owned();
        Recorder::new(Owner { communicator: 7, epoch: 0, rank: 1, ranks: 4, host, transport: "threads" })
    }

    fn call(sequence: u64) -> OpDesc {
        OpDesc::new(sequence, OpKind::AllGatherV, DType::F32, None, 0, 3 * sequence)
    }

    #[test]
    fn recorder_keeps_last_ops_in_order_with_state() {
        let recorder = recorder();
        for number in 1..=98 {
            recorder.begin(number, &call(number));
            recorder.complete(number);
        }
        recorder.begin(99, &call(99));
        recorder.mark_waiting(Some(2));
        let flight = recorder.snapshot(3);
        let calls: Vec<_> = flight.operations.iter().map(|operation| operation.op).collect();
        assert_eq!(calls, (36..=99).map(call).collect::<Vec<_>>());
        let (last, earlier) = flight.operations.split_last().unwrap();
        assert_eq!((last.state, last.peer, last.number), (OpState::Started, Some(2), 99));
        assert!(last.started.is_some() && last.ended.is_none());
        assert!(earlier.iter().all(|operation| operation.state == OpState::Done && operation.peer.is_none()));
        let timed = earlier.iter().filter(|operation| operation.started.is_some());
        assert_eq!(timed.map(|operation| operation.number).collect::<Vec<_>>(), [64]);
        recorder.stop_clock(99);
        assert!(recorder.snapshot(0).operations[63].ended.is_some());
        recorder.set_error(Error::invalid_usage("why"));
        recorder.set_error(Error::invalid_usage("too late"));
        let flight = recorder.snapshot(0);
        assert_eq!(
            (flight.operations[63].state, flight.error.as_deref()),
            (OpState::Failed, Some("why; correct the call or the setting"))
        );
    }

    #[test]
    fn recorder_reader_never_sees_torn_record() {
        let recorder = recorder();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 1..=300_000 {
                    recorder.begin(number, &call(number));
                    recorder.complete(number);
                }
            });
            let mut seen = 0;
            while seen < 300_000 {
                for OpRecord { number, op: call, .. } in recorder.snapshot(0).operations {
                    assert_eq!((call.sequence(), call.count), (number, 3 * number));
                    seen = seen.max(number);
                }
            }
        });
    }
}
