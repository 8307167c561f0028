//! One-way flag latency between two cores, at this moment.
//!
//! The cores of a virtual machine share a cache at one time and none at another. A comparison of
//! times must know which case applied. Two sides, threads or processes, share one [`FlagPage`].

use crate::sync::Ordering;
use crate::sys::segment::Segment;
use crate::{Error, Result};
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Two flags, on cache lines of their own, that two sides raise in turn.
#[derive(Debug)]
pub struct FlagPage(Segment);

/// Role of a side: one raises a flag first, the other answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Raises the first flag.
    Initiator = 0,
    /// Waits for the first flag, and raises the other.
    Responder = 1,
}

impl FlagPage {
    /// Creates a new page.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn new() -> Result<Self> {
        Segment::create(FLAG_PAGE_BYTES).map(Self)
    }

    /// Opens the page of another process of this user, from its [`FlagPage::path`].
    ///
    /// # Errors
    /// Returns the system's error, or [`Error::InvalidUsage`] if the file is no such page.
    pub fn open(path: &Path) -> Result<Self> {
        let opened = File::options().read(true).write(true).open(path);
        let file = opened
            .map_err(|source| Error::System { what: format!("cannot open {}", path.display()), source })?;
        Segment::attach(file.into(), FLAG_PAGE_BYTES).map(Self)
    }

    /// Returns the path at which other processes find the page, as long as this one keeps it.
    ///
    /// # Errors
    /// Returns [`Error::InvalidUsage`] if the page belongs to one process only.
    pub fn path(&self) -> Result<PathBuf> {
        use std::os::fd::AsRawFd;
        let fd = self.0.fd().ok_or_else(|| Error::InvalidUsage("a table of one process".to_owned()))?;
        Ok(format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd()).into())
    }

    /// Runs this many turns, after one in which the sides meet. Both sides must call it equally
    /// often. Returns the time of one flag in one direction. Returns `None` if the other side does
    /// not come within a tenth of a second.
    pub fn run(&self, side: Side, turns: u64) -> Option<Duration> {
        let flag = self.0.word(offset(side));
        let game = (flag.load(Ordering::Relaxed) / RUN_STRIDE + 1) * RUN_STRIDE;
        let seconds = self.measure(side, game, turns);
        if seconds.is_none() {
            // Each side counts the runs, so that a failed run is not taken for the next. A side
            // that completes a run leaves its last flag raised, as the other side may not have seen
            // it yet.
            flag.store(game, Ordering::Relaxed);
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
        let flag = self.0.word(offset(side));
        for turn in turns {
            if side == Side::Initiator {
                flag.store(turn, Ordering::Release);
            }
            self.wait(side, turn, begun)?;
            if side == Side::Responder {
                flag.store(turn, Ordering::Release);
            }
        }
        Some(begun.elapsed())
    }

    /// Waits until the other side's flag equals `turn`.
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

/// Returns the offset of a side's flag.
fn offset(side: Side) -> usize {
    side as usize * FLAG_STRIDE_BYTES
}

const FLAG_PAGE_BYTES: usize = 4096;
/// Distance of the flags. Processors fetch cache lines in pairs, some in fours.
const FLAG_STRIDE_BYTES: usize = 1024;
/// Distance of the numbers of two runs, larger than the turns of any run.
const RUN_STRIDE: u64 = 1 << 32;
const TIMEOUT: Duration = Duration::from_millis(100);
/// Looks at a flag between two looks at the clock.
const POLLS: u32 = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    /// Turns of each run. There are so many runs that a side which leaves a run too early is found
    /// out.
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
            assert!(played > RUNS.len() / 2, "{asking:?} {answering:?}");
        });
    }

    #[test]
    fn lone_side_times_out_and_next_run_works() {
        let table = FlagPage::new().expect("memory");
        // In this order the initiator's last flag looks like the turn of an answer.
        assert_eq!(table.run(Side::Responder, 2), None);
        assert_eq!(table.run(Side::Initiator, 1), None);
        std::thread::scope(|scope| {
            // On a busy machine a side may not get a core in time.
            let works = |_| {
                let answering = scope.spawn(|| table.run(Side::Responder, 3));
                let asking = table.run(Side::Initiator, 3);
                asking.is_some() && answering.join().expect("no panic").is_some()
            };
            assert!((0..100).any(works));
        });
    }

    #[test]
    fn open_rejects_other_files() {
        assert!(FlagPage::open(Path::new("/proc/self/exe")).is_err());
        assert!(FlagPage::open(Path::new("/no/such/file")).is_err());
    }
}
