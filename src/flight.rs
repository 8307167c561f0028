//! The flight record: the last operations of a rank, for callers and for `unisono analyze`.

use crate::op_desc::OpDesc;
use crate::schedule::Rank;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The last operations of one rank of one communicator; see
/// [`Communicator::flight_record`](crate::Communicator::flight_record).
///
/// Times are relative to the creation of the communicator. Reading the clock would slow down small
/// operations. So it is read only for large operations, at the start of one in 64 of the others,
/// and when an operation waits long.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct FlightRecord {
    /// Identifier of the communicator, equal on all its ranks and unique. Zero for a fabric that
    /// the caller made.
    pub communicator: u64,
    /// Number of shrinks between the bootstrap and this communicator.
    pub epoch: u64,
    /// This rank.
    pub rank: Rank,
    /// Number of ranks.
    pub ranks: usize,
    /// Host of this rank.
    pub host: String,
    /// Name of the transport.
    pub transport: &'static str,
    /// Time of this record.
    pub now: Duration,
    /// Number of operations that are queued and have not begun.
    pub enqueued: u64,
    /// The error that ended the communicator, if one did.
    pub error: Option<String>,
    /// The last operations, in the order in which they began.
    pub operations: Vec<OpRecord>,
}

/// One recorded operation.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct OpRecord {
    /// Number of the operation at this rank, from 1.
    pub number: u64,
    /// The operation.
    pub op: OpDesc,
    /// Progress of the operation.
    pub state: OpState,
    /// Time at which the operation began or first had to wait, if the clock was read.
    pub started: Option<Duration>,
    /// Time at which the operation ended, if the clock was read.
    pub ended: Option<Duration>,
    /// The rank that the operation waited for last; the other rank of a send or receive.
    pub peer: Option<Rank>,
}

/// The progress of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpState {
    /// The operation has begun.
    Started,
    /// The operation is complete at this rank.
    Done,
    /// The operation returned an error.
    Failed,
}

impl OpState {
    fn name(self) -> &'static str {
        match self {
            OpState::Started => "started",
            OpState::Done => "done",
            OpState::Failed => "failed",
        }
    }
}

impl FlightRecord {
    /// Returns the record as JSON, which `unisono analyze` reads.
    pub fn to_json(&self) -> String {
        let FlightRecord { communicator, epoch, rank, ranks, transport, enqueued, .. } = self;
        let (host, error) =
            (json_string(&self.host), self.error.as_deref().map_or("null".to_owned(), json_string));
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

    /// Writes the record into `folder` atomically and returns the path of the file.
    pub(crate) fn dump(&self, folder: &Path) -> std::io::Result<PathBuf> {
        let FlightRecord { communicator, epoch, rank, .. } = self;
        let file = folder.join(format!("unisono-{communicator:016x}-{epoch}-rank-{rank}.json"));
        let unfinished = file.with_extension(format!("{}.part", std::process::id()));
        std::fs::create_dir_all(folder)?;
        std::fs::write(&unfinished, self.to_json())?;
        std::fs::rename(&unfinished, &file)?;
        Ok(file)
    }
}

impl OpRecord {
    fn write_json(&self, text: &mut String) {
        let OpRecord { number, op: call, state: progress, .. } = self;
        let or_null = |number: Option<u64>| number.map_or("null".to_owned(), |number| number.to_string());
        let (sequence, of_all, algorithm) =
            (call.sequence, call.is_collective(), call.algorithm_name().unwrap_or(""));
        let (bytes, peer) = (or_null(call.bytes()), or_null(self.peer.map(|peer| peer as u64)));
        let (started, ended) = (milliseconds(self.started), milliseconds(self.ended));
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "{{\"number\": {number}, \"sequence\": {sequence}, \"of_all\": {of_all}, \"call\": {}, \
             \"algorithm\": \"{algorithm}\", \"bytes\": {bytes}, \"state\": \"{}\", \"started_ms\": {started}, \
             \"ended_ms\": {ended}, \"peer\": {peer}}}",
            json_string(&call.to_string()),
            progress.name()
        );
    }
}

fn milliseconds(time: Option<Duration>) -> String {
    time.map_or("null".to_owned(), |time| format!("{:.4}", time.as_secs_f64() * 1e3))
}

/// Returns `text` as a JSON string.
pub(crate) fn json_string(text: &str) -> String {
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
    fn json_string_escapes_control_and_quotes() {
        assert_eq!(json_string("a \"b\" \\ c\n"), r#""a \"b\" \\ c\u000a""#);
    }
}
