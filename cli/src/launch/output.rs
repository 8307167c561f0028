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

    /// Copies lines from `from` to `into` until `from` ends, each with its rank in front.
    pub(super) fn forward(
        &mut self,
        rank: usize,
        from: impl Read + Send + 'static,
        into: impl Write + Send + 'static,
    ) -> std::io::Result<()> {
        let tell = self.done_sender.clone();
        let name = format!("output of rank {rank}");
        std::thread::Builder::new().name(name).spawn(move || {
            // A closed reader ends this thread; the rank gets the error at its next write.
            let _ = copy_lines(rank, from, into);
            let _ = tell.send(());
        })?;
        self.threads += 1;
        Ok(())
    }

    /// Waits for the last lines, but no longer than `timeout`: a descendant may keep the pipe
    /// open.
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

fn copy_lines(rank: usize, from: impl Read, mut into: impl Write) -> std::io::Result<()> {
    let mut from = BufReader::new(from);
    let prefix = format!("[{rank}] ");
    let mut line = prefix.clone().into_bytes();
    while from.by_ref().take(LINE_MAX).read_until(b'\n', &mut line)? > 0 {
        if line.last() != Some(&b'\n') {
            line.push(b'\n');
        }
        // A single write keeps lines of different ranks apart.
        into.write_all(&line)?;
        into.flush()?;
        line.truncate(prefix.len());
    }
    Ok(())
}

/// Longer lines are split, so that a rank that prints no line ends cannot fill the memory.
const LINE_MAX: u64 = 64 << 10;

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
    fn endless_lines_are_cut() {
        let mut found = Vec::new();
        copy_lines(0, &vec![b'x'; LINE_MAX as usize + 1][..], &mut found).unwrap();
        assert_eq!(found.len(), LINE_MAX as usize + 1 + 2 * "[0] \n".len());
    }
}
