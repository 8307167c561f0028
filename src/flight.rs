//! The flight record, which has the last operations of a rank, for callers and for `unisono
//! analyze`.

use crate::op_desc::OpDesc;
use crate::schedule::Rank;
use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use unisono_transports::sys::private_file;

/// The last operations of one rank of one communicator. See
/// [`Communicator::flight_record`](crate::Communicator::flight_record).
///
/// Times are relative to the creation of the communicator. Reading the clock takes too long for
/// small operations. So the clock is read for large operations, at the start of every 64th small
/// operation, and when an operation waits for a long time.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct FlightRecord {
    /// Unique identifier of the communicator, which is equal on all its ranks. It is zero over a
    /// fabric that the caller made.
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
#[derive(Clone, Debug, PartialEq)]
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
    /// The rank for which the operation waited last, or the other rank of a send or receive.
    pub peer: Option<Rank>,
    /// The label of the call, if it has one. See [`CallOptions::label`](crate::CallOptions::label).
    pub label: Option<Arc<str>>,
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
    /// Returns the record as JSON, which `unisono analyze` reads. Each operation is one line.
    pub fn to_json(&self) -> String {
        let operations: Vec<String> =
            self.operations.iter().map(|record| record.to_json().to_string()).collect();
        let mut record = json!({
            "communicator": format!("{:016x}", self.communicator),
            "epoch": self.epoch,
            "rank": self.rank,
            "ranks": self.ranks,
            "host": self.host,
            "transport": self.transport,
            "now_ms": milliseconds(self.now),
            "enqueued": self.enqueued,
            "error": self.error,
        })
        .to_string();
        record.pop();
        format!("{record},\n \"operations\": [\n  {}]}}\n", operations.join(",\n  "))
    }

    /// Writes the record into `folder` atomically, for this user only, and returns the path of the
    /// file.
    pub(crate) fn dump(&self, folder: &Path) -> std::io::Result<PathBuf> {
        let FlightRecord { communicator, epoch, rank, .. } = self;
        let file = folder.join(format!("unisono-{communicator:016x}-{epoch}-rank-{rank}.json"));
        let unfinished = file.with_extension(format!("{}.part", std::process::id()));
        std::fs::create_dir_all(folder)?;
        private_file::create(&unfinished)?.write_all(self.to_json().as_bytes())?;
        std::fs::rename(&unfinished, &file)?;
        Ok(file)
    }
}

impl OpRecord {
    fn to_json(&self) -> Value {
        json!({
            "number": self.number,
            "sequence": self.op.sequence(),
            "of_all": self.op.is_collective(),
            "call": self.op.to_string(),
            "algorithm": self.op.algorithm_name().unwrap_or_default(),
            "bytes": self.op.bytes(),
            "state": self.state.name(),
            "started_ms": self.started.map(milliseconds),
            "ended_ms": self.ended.map(milliseconds),
            "peer": self.peer,
            "label": self.label.as_deref(),
        })
    }
}

/// Returns a time in milliseconds, rounded to 0.1 us.
fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e7).round() / 1e4
}
