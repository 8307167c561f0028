//! Trace files of operations, for Perfetto and chrome://tracing.
//!
//! Each communicator of each rank writes its own file: an array in Chrome's Trace Event Format,
//! written while the rank runs. The end of the array may be missing. A process that is killed loses
//! only the last few events.
//!
//! Times are relative to the beginning of the file, because a double cannot hold nanoseconds since
//! 1970. The first event contains the absolute time, which `unisono trace` uses to merge files.

use crate::engine::telemetry::flight::{Owner, Recorder};
use crate::error::Error;
use crate::op_desc::OpDesc;
use serde_json::Value;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use unisono_transports::sys::descriptors::off_stdio;
use unisono_transports::sys::{fork_guard, private_file};

/// The trace file of one communicator.
pub(crate) struct Trace {
    /// `None` after a write failed.
    out: Option<BufWriter<File>>,
    /// Row of this communicator in the view of its process.
    track: u64,
    created: Instant,
    /// Operations that have begun and not ended.
    active: Vec<(u64, OpDesc, Instant)>,
    /// Process that opened the file.
    process: u64,
}

impl Trace {
    /// Creates a file in `folder`, for this user only.
    ///
    /// # Errors
    /// The file cannot be created or written.
    pub(crate) fn open(folder: &Path, owner: &Owner) -> io::Result<Self> {
        let Owner { communicator, epoch, rank, ranks, host, transport } = owner;
        let row = NEXT_TRACK.fetch_add(1, Ordering::Relaxed);
        let file = format!("unisono-{communicator:016x}-{epoch}-rank-{rank}-row-{row}.trace.json");
        std::fs::create_dir_all(folder)?;
        let mut out = BufWriter::new(off_stdio(private_file::create(&folder.join(file))?)?);
        let begun = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let born = Instant::now();
        let (pid, host) = (std::process::id(), Value::from(host.as_str()));
        let name = format!("rank {rank} of {ranks}, {transport}, communicator {communicator:016x}-{epoch}");
        writeln!(
            out,
            "[\n{{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":{pid},\"tid\":{row},\
             \"args\":{{\"name\":{host},\"begun_ns\":{begun}}}}},\n\
             {{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":{pid},\"tid\":{row},\"args\":{{\"name\":{}}}}},",
            Value::from(name)
        )?;
        Ok(Self {
            out: Some(out),
            track: row,
            created: born,
            active: Vec::new(),
            process: fork_guard::current_pid(),
        })
    }

    /// Records the beginning of operation `number`.
    pub(crate) fn begin(&mut self, number: u64, call: &OpDesc) {
        self.active.push((number, *call, Instant::now()));
    }

    /// Writes all active operations, which end now.
    pub(crate) fn end(&mut self, recorder: &Recorder, error: Option<&Error>) {
        let now = Instant::now();
        let under_way = std::mem::take(&mut self.active);
        let written = under_way.iter().try_for_each(|(number, call, start)| {
            let waited_for = recorder.waited_for(*number);
            self.write(call, (*start, now), waited_for, error)
        });
        let mut flushed = || self.out.as_mut().filter(|_| error.is_some()).map_or(Ok(()), BufWriter::flush);
        if let Err(error) = written.and_then(|()| flushed()) {
            tracing::warn!(%error, "the trace ends here: it cannot be written");
            self.out = None;
        }
        // The list goes back, so that the next operation finds its memory.
        self.active = under_way;
        self.active.clear();
    }

    fn write(
        &mut self,
        call: &OpDesc,
        (start, end): (Instant, Instant),
        waited_for: Option<usize>,
        error: Option<&Error>,
    ) -> io::Result<()> {
        let Some(out) = &mut self.out else { return Ok(()) };
        let microseconds = |nanoseconds: u128| (nanoseconds / 1000, nanoseconds % 1000);
        let ((start_us, start_ns), (long, long_ns)) =
            (microseconds((start - self.created).as_nanos()), microseconds((end - start).as_nanos()));
        let (pid, row, sequence) = (std::process::id(), self.track, call.sequence());
        write!(
            out,
            "{{\"name\":\"{}\",\"ph\":\"X\",\"pid\":{pid},\"tid\":{row},\"ts\":{start_us}.{start_ns:03},\
             \"dur\":{long}.{long_ns:03},\"args\":{{\"sequence\":{sequence},\"call\":{}",
            call.name(),
            Value::from(call.to_string())
        )?;
        call.bytes().map_or(Ok(()), |bytes| write!(out, ",\"bytes\":{bytes}"))?;
        call.algorithm_name().map_or(Ok(()), |algorithm| write!(out, ",\"algorithm\":\"{algorithm}\""))?;
        waited_for.map_or(Ok(()), |peer| write!(out, ",\"waited_for\":{peer}"))?;
        error.map_or(Ok(()), |error| write!(out, ",\"error\":{}", Value::from(error.to_string())))?;
        writeln!(out, "}}}},")
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        // A forked child has a copy of what its parent will write, and must not write it.
        if self.process != fork_guard::current_pid() {
            drop(self.out.take().map(BufWriter::into_parts));
        }
    }
}

/// Number of the next trace file of this process.
static NEXT_TRACK: AtomicU64 = AtomicU64::new(1);
