//! Progress of long work on standard error: a bar on a terminal, otherwise a line from time to
//! time.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

/// Progress of work that consists of so many parts.
///
/// ```
/// use unisono_trainer::progress::WorkProgress;
/// let mut progress = WorkProgress::new("documents");
/// (0..=3).for_each(|done| progress.show(done, 3));
/// ```
pub struct WorkProgress {
    /// Name of the parts, in the plural.
    parts: &'static str,
    bar: Option<ProgressBar>,
    shown: Instant,
}

/// Time between two lines.
const INTERVAL: Duration = Duration::from_secs(10);

impl WorkProgress {
    /// Begins work whose parts have this name, in the plural.
    pub fn new(parts: &'static str) -> Self {
        let bar = stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{bar:20} {pos}/{len} {msg} {eta} left");
            ProgressBar::new(0).with_style(style.expect("a template")).with_message(parts)
        });
        Self { parts, bar, shown: Instant::now() }
    }

    /// Shows that `done` of `count` parts are done.
    pub fn show(&mut self, done: usize, count: usize) {
        if let Some(bar) = &self.bar {
            bar.set_length(count as u64);
            bar.set_position(done as u64);
        } else if self.shown.elapsed() >= INTERVAL {
            self.shown = Instant::now();
            // A closed standard error does not end the work.
            let _ = writeln!(stderr(), "{done} of {count} {}", self.parts);
        }
    }
}

impl Drop for WorkProgress {
    fn drop(&mut self) {
        self.bar.iter().for_each(ProgressBar::finish_and_clear);
    }
}
