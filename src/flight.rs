//! What a rank did last: the flight recorder, as callers and `unisono analyze` see it.

use crate::call::Call;
use crate::schedule::Rank;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The last operations of one rank of one communicator; see [`Communicator::flight`](crate::Communicator::flight).
///
/// Times are since the communicator was made. Reading the clock would be a tenth of the smallest operations, so it is
/// read for those that move many bytes, at the start of one in 64 of the others, and in those that have to wait long.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Flight {
    /// A number that the ranks of this communicator share, and no other communicator has; zero over a mesh that the caller made.
    pub communicator: u64,
    /// How often what it comes from was shrunk since its ranks met.
    pub epoch: u64,
    /// This rank.
    pub rank: Rank,
    /// How many ranks there are.
    pub ranks: usize,
    /// Where this rank is.
    pub host: String,
    /// How ranks reach each other.
    pub transport: &'static str,
    /// When this was asked for.
    pub now: Duration,
    /// Operations that were asked for and have not begun.
    pub enqueued: u64,
    /// The error that ended the communicator, if one did.
    pub error: Option<String>,
    /// The last operations, in the order in which they began.
    pub operations: Vec<Recorded>,
}

/// One operation on record.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Recorded {
    /// Which operation of this communicator at this rank, from 1.
    pub number: u64,
    /// What was called.
    pub call: Call,
    /// How far it is.
    pub progress: Progress,
    /// When it began, or first had to wait, where the clock was read.
    pub started: Option<Duration>,
    /// When it was through, where the clock was read.
    pub ended: Option<Duration>,
    /// The rank that it waits for, or waited for last; of a send or receive, the other rank.
    pub peer: Option<Rank>,
}

/// How far an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It has begun.
    Started,
    /// This rank is through with it.
    Done,
    /// It returned an error.
    Failed,
}

impl Progress {
    fn name(self) -> &'static str {
        match self {
            Progress::Started => "started",
            Progress::Done => "done",
            Progress::Failed => "failed",
        }
    }
}

impl Flight {
    /// As JSON, as `unisono analyze` reads it.
    pub fn json(&self) -> String {
        let Flight { communicator, epoch, rank, ranks, transport, enqueued, .. } = self;
        let (host, error) = (quoted(&self.host), self.error.as_deref().map_or("null".to_owned(), quoted));
        let mut text = format!(
            "{{\"communicator\": \"{communicator:016x}\", \"epoch\": {epoch}, \"rank\": {rank}, \"ranks\": {ranks}, \
             \"host\": {host}, \"transport\": \"{transport}\", \"now_ms\": {}, \"enqueued\": {enqueued}, \
             \"error\": {error},\n \"operations\": [",
            milliseconds(Some(self.now))
        );
        for (index, operation) in self.operations.iter().enumerate() {
            text.push_str(if index > 0 { ",\n  " } else { "\n  " });
            operation.write_json(&mut text);
        }
        text + "]}\n"
    }

    /// Writes it into `folder`, in one piece; the file.
    pub(crate) fn dump(&self, folder: &Path) -> std::io::Result<PathBuf> {
        let Flight { communicator, epoch, rank, .. } = self;
        let file = folder.join(format!("unisono-{communicator:016x}-{epoch}-rank-{rank}.json"));
        let unfinished = file.with_extension(format!("{}.part", std::process::id()));
        std::fs::create_dir_all(folder)?;
        std::fs::write(&unfinished, self.json())?;
        std::fs::rename(&unfinished, &file)?;
        Ok(file)
    }
}

impl Recorded {
    fn write_json(&self, text: &mut String) {
        let Recorded { number, call, progress, .. } = self;
        let or_null = |number: Option<u64>| number.map_or("null".to_owned(), |number| number.to_string());
        let (sequence, of_all, algorithm) =
            (call.sequence, call.is_of_all(), call.algorithm_name().unwrap_or(""));
        let (bytes, peer) = (or_null(call.bytes()), or_null(self.peer.map(|peer| peer as u64)));
        let (started, ended) = (milliseconds(self.started), milliseconds(self.ended));
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "{{\"number\": {number}, \"sequence\": {sequence}, \"of_all\": {of_all}, \"call\": {}, \
             \"algorithm\": \"{algorithm}\", \"bytes\": {bytes}, \"state\": \"{}\", \"started_ms\": {started}, \
             \"ended_ms\": {ended}, \"peer\": {peer}}}",
            quoted(&call.to_string()),
            progress.name()
        );
    }
}

fn milliseconds(time: Option<Duration>) -> String {
    time.map_or("null".to_owned(), |time| format!("{:.4}", time.as_secs_f64() * 1e3))
}

/// As a JSON string.
pub(crate) fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            // Writing to a string cannot fail.
            letter if letter.is_control() => drop(write!(quoted, "\\u{:04x}", letter as u32)),
            letter => quoted.push(letter),
        }
    }
    quoted + "\""
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_quoted_as_json_wants_it() {
        assert_eq!(quoted("a \"b\" \\ c\n"), r#""a \"b\" \\ c\u000a""#);
    }
}
