//! Times of work on the streams of a GPU.

use crate::error::Result;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use unisono_cuda::device::{Event, GpuError, Stream};

/// Track of work on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuTrack {
    /// Forward and backward of units.
    Compute,
    /// Collectives of gradients and weights.
    Communication,
}

/// Work on a stream, between two events.
struct EnqueuedSpan {
    name: String,
    track: GpuTrack,
    start: Event,
    end: Event,
}

/// Work that has run.
pub struct GpuSpan {
    /// Name of the work.
    pub name: String,
    /// Its track.
    pub track: GpuTrack,
    /// Start on the clock of the host.
    pub start: Instant,
    /// Duration.
    pub time: Duration,
}

/// Recorder of one rank's work on a GPU. Clones share it.
///
/// Times of the GPU are put on the clock of the host by one event that both saw.
#[derive(Clone)]
pub struct GpuTimeline(Arc<Recorder>);

struct Recorder {
    is_on: AtomicBool,
    origin: Event,
    host: Instant,
    spans: Mutex<Vec<EnqueuedSpan>>,
}

impl GpuTimeline {
    /// Starts to record on the GPU of `stream`.
    ///
    /// # Errors
    /// Returns an error of the GPU driver.
    pub fn new(stream: &Stream) -> Result<Self> {
        let origin = stream.record()?;
        // The host's clock is read as soon as the event has happened, so that one moment is known
        // on both clocks.
        origin.synchronize()?;
        let (is_on, host, spans) = (AtomicBool::new(true), Instant::now(), Mutex::default());
        Ok(Self(Arc::new(Recorder { is_on, origin, host, spans })))
    }

    /// Stops to record.
    pub fn stop(&self) {
        // The flag orders no other memory: a thread that sees it late records some more work.
        self.0.is_on.store(false, Ordering::Relaxed);
    }

    /// Marks the start of work on a stream; `None` if nothing is recorded.
    ///
    /// # Errors
    /// Returns an error of the GPU driver.
    pub fn begin(&self, stream: &Stream) -> std::result::Result<Option<Event>, GpuError> {
        self.0.is_on.load(Ordering::Relaxed).then(|| stream.record()).transpose()
    }

    /// Records work from `start` to this point of the stream.
    ///
    /// # Errors
    /// Returns an error of the GPU driver.
    pub fn end(
        &self,
        track: GpuTrack,
        name: String,
        stream: &Stream,
        start: Option<Event>,
    ) -> std::result::Result<(), GpuError> {
        let Some(start) = start else { return Ok(()) };
        // The event is only enqueued here, and `take` waits for it, so that the host stays ahead of
        // the GPU.
        let span = EnqueuedSpan { name, track, start, end: stream.record()? };
        self.0.spans.lock().unwrap_or_else(PoisonError::into_inner).push(span);
        Ok(())
    }

    /// Returns all work recorded since the last call, and waits for its end.
    ///
    /// # Errors
    /// Returns an error of the GPU driver.
    pub fn take(&self) -> Result<Vec<GpuSpan>> {
        // A thread that panicked has left whole spans in the list.
        let spans = std::mem::take(&mut *self.0.spans.lock().unwrap_or_else(PoisonError::into_inner));
        // The conversion panics for a negative number, so such a time counts as zero.
        let milliseconds = |time: f32| Duration::from_secs_f64(f64::from(time.max(0.0)) / 1e3);
        let ended = |EnqueuedSpan { name, track, start, end }: EnqueuedSpan| {
            let offset = milliseconds(self.0.origin.elapsed_ms(&start)?);
            let time = milliseconds(start.elapsed_ms(&end)?);
            Ok(GpuSpan { name, track, start: self.0.host + offset, time })
        };
        spans.into_iter().map(ended).collect()
    }
}
