//! Sleep and wake-up between the ranks of a host, with the words in their segments and the futex.

use crate::shm::layout::Layout;
use crate::shm::wake::{self, ASLEEP, WakeWords};
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};
use crate::sys::segment::Segment;
use rustix::io::Errno;
use rustix::thread::futex;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::compiler_fence;
use std::time::Duration;

/// The wake words of the ranks that share memory, as one of them sees them.
///
/// All links of the rank, its window and its waits share one value.
#[derive(Debug)]
pub struct Sleepers {
    rank: usize,
    own: Arc<Segment>,
    /// The requests of this rank, in `own`.
    own_requests: NonNull<AtomicU64>,
    segments: Vec<Option<Arc<Segment>>>,
    /// Number of consecutive publications that executed a fence and found no sleeper. Only the
    /// thread that uses the fabric changes it.
    in_vain: AtomicU32,
}

/// A request of this rank to others to wake it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WakeRequest {
    bits: u64,
    certain: bool,
}

impl WakeRequest {
    /// Returns true if all ranks of the request will certainly wake this rank.
    pub(crate) fn is_certain(self) -> bool {
        self.certain
    }

    /// Returns true if the request was made to all of `peers`.
    pub(crate) fn covers(self, peers: &mut dyn Iterator<Item = usize>) -> bool {
        peers.fold(0, |bits, peer| bits | wake::bit(peer)) & !self.bits == 0
    }
}

// SAFETY: the address is that of an atomic word in memory that the value holds by `own`.
unsafe impl Send for Sleepers {}
// SAFETY: as above.
unsafe impl Sync for Sleepers {}

impl WakeWords for Sleepers {
    #[inline]
    fn requests(&self, rank: usize) -> &AtomicU64 {
        self.segment(rank).word(Layout::requests())
    }

    #[inline]
    fn asleep(&self, rank: usize) -> &AtomicU32 {
        self.segment(rank).half_word(Layout::asleep())
    }
}

impl Sleepers {
    pub(super) fn new(rank: usize, own_segment: &Arc<Segment>, segments: Vec<Option<Arc<Segment>>>) -> Self {
        let own_requests = NonNull::from(own_segment.word(Layout::requests()));
        Self { rank, own: Arc::clone(own_segment), own_requests, segments, in_vain: AtomicU32::new(0) }
    }

    /// Returns the memory of a rank. Callers name only ranks of this host.
    fn segment(&self, rank: usize) -> &Segment {
        self.segments[rank].as_deref().unwrap_or(&self.own)
    }

    /// Wakes the ranks that wait for a publication of this rank. Call it after each publication.
    #[inline]
    pub(super) fn notify(&self) {
        // The compiler may not move the load before the publication. The processor may, and
        // `wake::take_requests` has the fence against that.
        compiler_fence(Ordering::SeqCst);
        // SAFETY: a word of `own`, which this value keeps mapped. Words are reached as atomics
        // only.
        if unsafe { self.own_requests.as_ref() }.load(Ordering::Relaxed) != 0 {
            self.wake_sleepers();
        }
    }

    #[cold]
    #[inline(never)]
    fn wake_sleepers(&self) {
        let sleepers = wake::take_requests(self, self.rank);
        if sleepers == 0 {
            let in_vain = self.in_vain.load(Ordering::Relaxed) + 1;
            self.in_vain.store(in_vain % IN_VAIN_MAX, Ordering::Relaxed);
            if in_vain == IN_VAIN_MAX {
                wake::withdraw_fences(self, self.rank);
            }
            return;
        }
        self.in_vain.store(0, Ordering::Relaxed);
        let ranks = self.segments.iter().enumerate().filter(|(_, segment)| segment.is_some());
        for (rank, _) in ranks.filter(|&(rank, _)| rank != self.rank && sleepers & wake::bit(rank) != 0) {
            if wake::is_to_be_woken(self, rank) {
                // A rank that is not asleep yet finds that its word has changed.
                let _ = futex::wake(self.asleep(rank), futex::Flags::empty(), 1);
            }
        }
    }

    /// Requests that `peers` wake this rank at their next publication. Returns `None` if one of
    /// them does not share memory with this rank, or if there are none.
    ///
    /// After this call and before [`Sleepers::sleep`], the caller must check what they have
    /// published.
    pub(crate) fn request(&self, peers: &mut dyn Iterator<Item = usize>) -> Option<WakeRequest> {
        wake::fall_asleep(self, self.rank);
        // Ranks of other hosts need this rank to read its sockets, which do not end this sleep.
        let mut request = WakeRequest { bits: 0, certain: self.segments.iter().all(Option::is_some) };
        for peer in peers {
            if peer == self.rank || !self.segments.get(peer).is_some_and(Option::is_some) {
                self.wake_up();
                return None;
            }
            request.certain &= wake::request(self, self.rank, peer);
            request.bits |= wake::bit(peer);
        }
        if request.bits == 0 {
            self.wake_up();
            return None;
        }
        Some(request)
    }

    /// Sleeps until one of the requested ranks has published something, or for `limit`, which is
    /// below a second. Returns whether the limit ended the sleep.
    pub(crate) fn sleep(&self, limit: Duration) -> bool {
        let limit = futex::Timespec { tv_sec: 0, tv_nsec: i64::from(limit.subsec_nanos()) };
        // Returns at once if the word has changed. An interrupted sleep is only a shorter one.
        let ended = futex::wait(self.asleep(self.rank), futex::Flags::empty(), ASLEEP, Some(&limit));
        self.wake_up();
        ended == Err(Errno::TIMEDOUT)
    }

    /// Ends the sleep of this rank from another of its threads.
    ///
    /// Before the call, that thread has written the data for this rank. A rank that is about to
    /// sleep checks once more after its requests, which also contain a full fence. So one of the
    /// two sees the other.
    pub(crate) fn wake_own(&self) {
        fence(Ordering::SeqCst);
        let asleep = self.asleep(self.rank);
        // The load avoids a write to a shared cache line if the rank is busy.
        if asleep.load(Ordering::Relaxed) == ASLEEP && wake::is_to_be_woken(self, self.rank) {
            let _ = futex::wake(asleep, futex::Flags::empty(), 1);
        }
    }

    /// Tells peers not to wake this rank any more, because it has seen the awaited publication.
    pub(crate) fn wake_up(&self) {
        wake::wake_up(self, self.rank);
    }
}

/// Publications without a sleeper after which fences end. A fence costs some ten nanoseconds, and a
/// new beginning one sleep that lasts its full time.
const IN_VAIN_MAX: u32 = 256;

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::shm::{Connected, connect_shared};
    use crate::{Geometry, SlotClass, Tag};
    use unisono_reducers::Source;

    const GEOMETRY: Geometry =
        Geometry { lanes: 1, slots: 2, slot_bytes: 64, signal_lanes: 1, window_bytes: 4096, heap_bytes: 0 };

    fn ranks<const RANKS: usize>() -> [Connected; RANKS] {
        let layout = Layout::new(RANKS, &GEOMETRY).unwrap();
        let segments = [(); RANKS].map(|()| Some(Arc::new(Segment::private(layout.bytes()).unwrap())));
        std::array::from_fn(|rank| connect_shared(rank, RANKS, &GEOMETRY, segments.to_vec()).unwrap())
    }

    fn send(rank: &mut Connected, peer: usize) {
        let link = rank.links[peer].as_mut().unwrap();
        assert!(link.try_send(0, &Tag([1; 4]), 4, &mut std::iter::once(Source::from(&[7; 4][..]))).unwrap());
    }

    fn release(rank: &mut Connected, peer: usize) {
        let link = rank.links[peer].as_mut().unwrap();
        assert!(link.body(0).unwrap().is_some());
        link.release(0);
    }

    fn request(rank: &Connected, peer: usize) -> Option<bool> {
        rank.sleepers.request(&mut std::iter::once(peer)).map(WakeRequest::is_certain)
    }

    fn is_asleep(rank: &Connected) -> bool {
        rank.sleepers.asleep(rank.sleepers.rank).load(Ordering::Relaxed) == ASLEEP
    }

    type Publish = fn(&mut Connected);

    /// Everything by which one rank can let another go on.
    #[test]
    fn every_publication_wakes() {
        let publications: [(&str, Publish); 6] = [
            ("a signal", |rank| rank.window.as_mut().unwrap().signal(0, 1)),
            ("a completion", |rank| rank.window.as_mut().unwrap().complete(0, 1)),
            ("an eager slot", |rank| {
                rank.window.as_mut().unwrap().publish(SlotClass::Inline, 0, 1, &Tag([0; 4]));
            }),
            ("an acknowledgement", |rank| rank.window.as_mut().unwrap().set_acked(1)),
            ("a message", |rank| send(rank, 0)),
            ("room for a message", |rank| release(rank, 0)),
        ];
        for (what, publish) in publications {
            let [mut sleeper, mut publisher] = ranks();
            // The message that the last publication releases.
            send(&mut sleeper, 1);
            for certain in [false, true] {
                assert_eq!((request(&sleeper, 1), is_asleep(&sleeper)), (Some(certain), true), "{what}");
                match certain {
                    // The first publication answers.
                    false => publisher.window.as_mut().unwrap().set_acked(0),
                    true => publish(&mut publisher),
                }
                assert!(!is_asleep(&sleeper), "{what} wakes nobody");
            }
        }
    }

    #[test]
    fn only_awaited_ranks_wake() {
        let [sleeper, mut awaited, mut other] = ranks();
        for certain in [false, true] {
            assert_eq!(request(&sleeper, 1), Some(certain));
            other.window.as_mut().unwrap().signal(0, 1);
            assert!(is_asleep(&sleeper));
            awaited.window.as_mut().unwrap().signal(0, 1);
            assert!(!is_asleep(&sleeper));
        }
    }

    #[test]
    fn another_thread_of_the_rank_ends_its_sleep() {
        let [sleeper, _peer] = ranks();
        request(&sleeper, 1).unwrap();
        sleeper.sleepers.wake_own();
        assert!(!is_asleep(&sleeper));
        assert!(!sleeper.sleepers.sleep(Duration::from_millis(999)), "the limit ended the sleep");
    }

    #[test]
    fn fences_end_when_nobody_sleeps() {
        let [sleeper, mut publisher] = ranks();
        let requests = |rank: &Connected| rank.sleepers.requests(1).load(Ordering::Relaxed);
        let mut publish = || publisher.window.as_mut().unwrap().set_acked(1);
        assert_eq!(request(&sleeper, 1), Some(false));
        (0..IN_VAIN_MAX).for_each(|_| publish());
        assert_ne!(requests(&sleeper), 0, "the first publication found a sleeper");
        publish();
        assert_eq!(requests(&sleeper), 0);
        assert_eq!(request(&sleeper, 1), Some(false), "a new answer is needed");
    }

    #[test]
    fn ranks_elsewhere_cannot_wake() {
        let layout = Layout::new(3, &GEOMETRY).unwrap();
        let segments = || Some(Arc::new(Segment::private(layout.bytes()).unwrap()));
        let rank = connect_shared(0, 3, &GEOMETRY, vec![segments(), segments(), None]).unwrap();
        for (peers, expected) in [
            (&[1][..], Some(false)),
            (&[1, 2], None),
            (&[2, 1], None),
            (&[0], None),
            (&[9], None),
            (&[], None),
        ] {
            let found = rank.sleepers.request(&mut peers.iter().copied());
            assert_eq!(found.map(WakeRequest::is_certain), expected, "{peers:?}");
            assert_eq!(is_asleep(&rank), expected.is_some(), "{peers:?}");
        }
    }

    #[test]
    fn ranks_elsewhere_make_every_sleep_short() {
        let layout = Layout::new(3, &GEOMETRY).unwrap();
        let segments: [_; 2] =
            std::array::from_fn(|_| Some(Arc::new(Segment::private(layout.bytes()).unwrap())));
        let [first, second] = segments;
        let here = || vec![first.clone(), second.clone(), None];
        let sleeper = connect_shared(0, 3, &GEOMETRY, here()).unwrap();
        let mut publisher = connect_shared(1, 3, &GEOMETRY, here()).unwrap();
        for _ in 0..2 {
            assert_eq!(request(&sleeper, 1), Some(false));
            send(&mut publisher, 0);
            assert!(!is_asleep(&sleeper));
        }
    }

    #[test]
    fn request_covers_only_ranks_that_it_went_to() {
        let [sleeper, _, _] = ranks();
        let request = sleeper.sleepers.request(&mut [1].into_iter()).unwrap();
        assert!(request.covers(&mut [1].into_iter()) && request.covers(&mut std::iter::empty()));
        assert!(!request.covers(&mut [1, 2].into_iter()) && !request.covers(&mut [2].into_iter()));
    }

    /// Two ranks hand a token over, and sleep whenever they may rely on being woken.
    #[test]
    fn no_wake_up_is_lost_between_threads() {
        const TURNS: u64 = 20_000;
        let [first, second] = ranks();
        let play = |mut rank: Connected| {
            let own_rank = rank.sleepers.rank;
            let mut slept = 0;
            for turn in (own_rank as u64..TURNS).step_by(2) {
                loop {
                    let window = rank.window.as_mut().unwrap();
                    if window.last_signal(1 - own_rank, 0) >= turn {
                        window.signal(0, turn + 1);
                        break;
                    }
                    let certain = request(&rank, 1 - own_rank).unwrap();
                    if rank.window.as_ref().unwrap().last_signal(1 - own_rank, 0) < turn && certain {
                        assert!(!rank.sleepers.sleep(Duration::from_millis(999)), "lost in turn {turn}");
                        slept += 1;
                    }
                }
            }
            slept
        };
        let slept = std::thread::scope(|scope| {
            let other = scope.spawn(|| play(second));
            play(first) + other.join().unwrap()
        });
        assert!(slept > 0, "nobody slept");
    }
}
