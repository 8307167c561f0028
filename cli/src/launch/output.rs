//! Forwarding of the output of ranks, line by line.

use std::io::{BufRead, BufReader, Read, Write};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// The threads that forward output.
pub(super) struct Outputs {
    threads: usize,
    done: Receiver<()>,
    done_sender: Sender<()>,
}

impl Outputs {
    pub(super) fn new() -> Self {
        let (tell, done) = channel();
        Self { threads: 0, done, done_sender: tell }
    }

    /// Copies lines from `source` to `target` until `source` ends, each with its rank in front.
    pub(super) fn forward(
        &mut self,
        rank: usize,
        source: impl Read + Send + 'static,
        target: impl Write + Send + 'static,
    ) -> std::io::Result<()> {
        let tell = self.done_sender.clone();
        let name = format!("output of rank {rank}");
        std::thread::Builder::new().name(name).spawn(move || {
            // If the reader is closed, this thread ends, and the rank gets the error at its next
            // write.
            let _ = copy_lines(rank, source, target);
            let _ = tell.send(());
        })?;
        self.threads += 1;
        Ok(())
    }

    /// Waits for the last lines, but not longer than `timeout`, because a descendant may keep the
    /// pipe open.
    pub(super) fn finish(&mut self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        while self.threads > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if self.done.recv_timeout(left).is_err() {
                break;
            }
            self.threads -= 1;
        }
    }
}

fn copy_lines(rank: usize, source: impl Read, target: impl Write) -> std::io::Result<()> {
    copy_lines_with(rank, source, target, PROGRESS_INTERVAL)
}

/// Copies lines. A rank may overwrite a line by carriage returns, as progress bars do. Each state
/// of the line is then shown on a separate line, at most one in each `interval`. The last state is
/// always shown.
fn copy_lines_with(
    rank: usize,
    source: impl Read,
    target: impl Write,
    interval: Duration,
) -> std::io::Result<()> {
    let mut source = BufReader::new(source);
    let mut lines = Lines { prefix: format!("[{rank}] ").into_bytes(), target, shown_at: None };
    let (mut line, mut overwritten, mut was_overwritten) = (Vec::new(), Vec::new(), false);
    loop {
        let bytes = source.fill_buf()?;
        if bytes.is_empty() {
            break;
        }
        for &byte in bytes {
            match byte {
                b'\n' => {
                    let state = if line.is_empty() { &overwritten } else { &line };
                    // An empty line is shown, but not the bare line end after a state that was
                    // shown already.
                    if !state.is_empty() || !was_overwritten {
                        lines.show(state)?;
                    }
                    (overwritten, was_overwritten) = (Vec::new(), false);
                    line.clear();
                }
                b'\r' => {
                    if lines.is_due(interval) && !line.is_empty() {
                        lines.show(&line)?;
                        // The end of the line, or of the output, must not show this state again.
                        line.clear();
                    }
                    overwritten = std::mem::take(&mut line);
                    was_overwritten = true;
                }
                byte => {
                    line.push(byte);
                    if line.len() == LINE_MAX {
                        lines.show(&line)?;
                        line.clear();
                    }
                }
            }
        }
        let length = bytes.len();
        source.consume(length);
    }
    let state = if line.is_empty() { &overwritten } else { &line };
    if state.is_empty() { Ok(()) } else { lines.show(state) }
}

/// Lines of one rank on their way out.
struct Lines<W> {
    prefix: Vec<u8>,
    target: W,
    shown_at: Option<Instant>,
}

impl<W: Write> Lines<W> {
    fn show(&mut self, line: &[u8]) -> std::io::Result<()> {
        self.shown_at = Some(Instant::now());
        // A single write keeps lines of different ranks apart.
        self.target.write_all(&[&self.prefix, line, b"\n"].concat())?;
        self.target.flush()
    }

    /// Returns whether the last line was shown that long ago.
    fn is_due(&self, interval: Duration) -> bool {
        self.shown_at.is_none_or(|shown| shown.elapsed() >= interval)
    }
}

/// Longer lines are split, so that a rank that prints no line ends cannot fill the memory.
const LINE_MAX: usize = 64 << 10;
/// Time between two states of a progress bar.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_gets_its_rank_and_the_last_one_its_end() {
        let mut found = Vec::new();
        copy_lines(3, &b"one\n\ntwo"[..], &mut found).unwrap();
        assert_eq!(String::from_utf8(found).unwrap(), "[3] one\n[3] \n[3] two\n");
    }

    #[test]
    fn states_of_progress_bars_are_lines_of_their_own() {
        let copied = |text: &str, interval| {
            let mut found = Vec::new();
            copy_lines_with(3, text.as_bytes(), &mut found, interval).unwrap();
            String::from_utf8(found).unwrap()
        };
        let bar = "begin\n 10%\r 20%\r 30%\nend\n";
        let every_state = "[3] begin\n[3]  10%\n[3]  20%\n[3]  30%\n[3] end\n";
        assert_eq!(copied(bar, Duration::ZERO), every_state);
        assert_eq!(copied(bar, Duration::MAX), "[3] begin\n[3]  30%\n[3] end\n");
        // The last state is shown once, however the bar ends.
        for interval in [Duration::ZERO, Duration::MAX] {
            assert_eq!(copied("100%\r\n", interval), "[3] 100%\n");
            assert_eq!(copied("x\n100%\r", interval), "[3] x\n[3] 100%\n");
            assert_eq!(copied("x\r\n\r\n\ny", interval), "[3] x\n[3] \n[3] y\n");
        }
        assert_eq!(copied("\r 10%\r 20%", Duration::MAX), "[3]  10%\n[3]  20%\n");
    }

    #[test]
    fn endless_lines_are_cut() {
        let mut found = Vec::new();
        copy_lines(0, &vec![b'x'; LINE_MAX + 1][..], &mut found).unwrap();
        assert_eq!(found.len(), LINE_MAX + 1 + 2 * "[0] \n".len());
    }
}
