//! How long a flag takes from one core to another, at this moment.
//!
//! The cores of a virtual machine share a cache at one time and none at another: whoever compares times has to know
//! which it was. Two sides, threads or processes, play on one [`FlagPage`].

use crate::shm::segment::Segment;
use crate::sync::Ordering;
use crate::{Error, Result};
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Two flags, on cache lines of their own, that two sides raise in turn.
#[derive(Debug)]
pub struct FlagPage(Segment);

/// Who raises a flag first, and who answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Raises the first flag.
    Initiator = 0,
    /// Waits for that, and raises the other.
    Responder = 1,
}

impl FlagPage {
    /// A new table.
    ///
    /// # Errors
    /// The system's.
    pub fn new() -> Result<Self> {
        Segment::create(FLAG_PAGE_BYTES).map(Self)
    }

    /// The table of another process of this user, from its [`FlagPage::path`].
    ///
    /// # Errors
    /// The system's, and [`Error::InvalidUsage`] if there is no table.
    pub fn open(path: &Path) -> Result<Self> {
        let opened = File::options().read(true).write(true).open(path);
        let file = opened
            .map_err(|source| Error::System { what: format!("cannot open {}", path.display()), source })?;
        Segment::attach(file.into(), FLAG_PAGE_BYTES).map(Self)
    }

    /// Where other processes find it, as long as this one keeps it.
    ///
    /// # Errors
    /// The system's.
    pub fn path(&self) -> Result<PathBuf> {
        use std::os::fd::AsRawFd;
        let fd = self.0.fd().ok_or_else(|| Error::InvalidUsage("a table of one process".to_owned()))?;
        Ok(format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd()).into())
    }

    /// Plays a game of so many turns, after one in which the sides meet; both must call it equally often. The time of one flag
    /// one way; none if the other side does not come within a tenth of a second.
    pub fn run(&self, side: Side, turns: u64) -> Option<Duration> {
        let own = self.0.word(offset(side));
        let game = (own.load(Ordering::Relaxed) / RUN_STRIDE + 1) * RUN_STRIDE;
        let seconds = self.measure(side, game, turns);
        if seconds.is_none() {
            // Each side counts the games, so that one that failed is not taken for the next. Who has played to the
            // end leaves the last flag standing: the other side may not have seen it yet.
            own.store(game, Ordering::Relaxed);
        }
        seconds
    }

    fn measure(&self, side: Side, game: u64, turns: u64) -> Option<Duration> {
        self.exchange(side, game + 1..game + 2)?;
        let seconds = self.exchange(side, game + 2..game + 2 + turns)?.as_secs_f64();
        Some(Duration::from_secs_f64(seconds / (2 * turns.max(1)) as f64))
    }

    fn exchange(&self, side: Side, turns: Range<u64>) -> Option<Duration> {
        let begun = Instant::now();
        let own = self.0.word(offset(side));
        for turn in turns {
            if side == Side::Initiator {
                own.store(turn, Ordering::Release);
            }
            self.wait(side, turn, begun)?;
            if side == Side::Responder {
                own.store(turn, Ordering::Release);
            }
        }
        Some(begun.elapsed())
    }

    /// Waits until the other side's flag says `turn`.
    fn wait(&self, side: Side, turn: u64, begun: Instant) -> Option<()> {
        let other = if side == Side::Initiator { Side::Responder } else { Side::Initiator };
        let flag = self.0.word(offset(other));
        while begun.elapsed() < TIMEOUT {
            for _ in 0..POLLS {
                if flag.load(Ordering::Acquire) == turn {
                    return Some(());
                }
                std::hint::spin_loop();
            }
        }
        None
    }
}

/// Where a side's flag is.
fn offset(side: Side) -> usize {
    side as usize * FLAG_STRIDE_BYTES
}

const FLAG_PAGE_BYTES: usize = 4096;
/// Processors fetch cache lines in pairs, some in fours.
const FLAG_STRIDE_BYTES: usize = 1024;
/// A game's number is above its turns.
const RUN_STRIDE: u64 = 1 << 32;
const TIMEOUT: Duration = Duration::from_millis(100);
/// Looks at a flag between two at the clock.
const POLLS: u32 = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    /// The turns of each game. So many that a side which leaves a game too early is found out.
    const RUNS: [u64; 50] = [3; 50];

    #[test]
    fn two_mappings_measure_repeatedly() {
        let ours = FlagPage::new().expect("memory");
        let theirs = FlagPage::open(&ours.path().expect("shared")).expect("the same memory");
        std::thread::scope(|scope| {
            let answering = scope.spawn(|| RUNS.map(|turns| theirs.run(Side::Responder, turns)));
            let asking = RUNS.map(|turns| ours.run(Side::Initiator, turns));
            let answering = answering.join().expect("no panic");
            let played = asking.iter().chain(&answering).flatten().count();
            // On a busy machine a side may not get a core in time.
            assert!(played > 9 * 2 * RUNS.len() / 10, "{asking:?} {answering:?}");
        });
    }

    #[test]
    fn lone_side_times_out_and_next_run_works() {
        let table = FlagPage::new().expect("memory");
        let begun = Instant::now();
        // In this order what the asking side left looks like an answer's turn.
        assert_eq!(table.run(Side::Responder, 2), None);
        assert_eq!(table.run(Side::Initiator, 1), None);
        assert!(begun.elapsed() < 10 * TIMEOUT);
        std::thread::scope(|scope| {
            let answering = scope.spawn(|| table.run(Side::Responder, 3));
            let asking = table.run(Side::Initiator, 3);
            assert!(asking.is_some() && answering.join().expect("no panic").is_some());
        });
    }

    #[test]
    fn open_rejects_other_files() {
        assert!(FlagPage::open(Path::new("/proc/self/exe")).is_err());
        assert!(FlagPage::open(Path::new("/no/such/file")).is_err());
    }
}
