//! Streams: work in one stream runs in the order of the calls, after the calls return.

use super::error::{GpuError, IntoGpuResult};
use super::event::Event;
use super::gpu::{Gpu, lock};
use super::graph::ReplayHook;
use super::memory::Memory;
use cudarc::driver::sys::{CUresult, CUstream, CUstreamCaptureStatus};
use cudarc::driver::{CudaEvent, CudaStream, result};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, TryLockError};

/// A stream of a GPU. Clones are the same one.
#[derive(Clone)]
pub struct Stream {
    gpu: Gpu,
    pub(crate) queue: Arc<Queue>,
}

/// The part of a stream that memory keeps while the stream uses it. It does not keep the GPU open.
pub(crate) struct Queue {
    stream: Arc<CudaStream>,
    /// True if something other than [`Stream::capture`] may capture the stream.
    shared: AtomicBool,
    /// Memory that the graph will use, during a capture. Locked whenever something is enqueued.
    captured: Mutex<Option<CapturedRefs>>,
    copied_bytes: [AtomicU64; 2],
}

/// Bytes that went between memory of the host and of the GPU for a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyStats {
    /// Bytes copied from the host.
    pub to_device: u64,
    /// Bytes copied to the host.
    pub from_device: u64,
}

/// Contents of a graph: the memory that its work uses, and the hooks of that work.
#[derive(Default)]
pub(crate) struct CapturedRefs {
    pub(crate) memories: Vec<Arc<Memory>>,
    pub(crate) hooks: Vec<Arc<dyn ReplayHook>>,
}

impl Stream {
    pub(crate) fn new(gpu: Gpu, stream: Arc<CudaStream>) -> Self {
        let (shared, captured, copied) = (AtomicBool::new(false), Mutex::new(None), Default::default());
        Self { gpu, queue: Arc::new(Queue { stream, shared, captured, copied_bytes: copied }) }
    }

    /// Wraps a stream of cudarc, which stays usable there. Work enqueued through both comes in the
    /// order of the calls.
    pub fn from_cudarc(gpu: &Gpu, stream: Arc<CudaStream>) -> Result<Self, GpuError> {
        if stream.context().cu_ctx() != gpu.context().cu_ctx() {
            let (owner, user) = (stream.context().ordinal(), gpu.ordinal());
            return Err(GpuError::WrongGpu { what: "a stream", owner, user });
        }
        let own = Self::new(gpu.clone(), stream);
        own.queue.share();
        Ok(own)
    }

    /// The GPU that it is of.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// The same stream for cudarc.
    pub fn cudarc(&self) -> &Arc<CudaStream> {
        self.queue.share();
        &self.queue.stream
    }

    /// Waits until all enqueued work is done, and returns its first error.
    pub fn synchronize(&self) -> Result<(), GpuError> {
        self.expect_no_capture("waiting for it")?;
        self.queue.stream.synchronize().or_gpu_error("cuStreamSynchronize")
    }

    /// Returns true if all enqueued work is done.
    pub fn is_idle(&self) -> Result<bool, GpuError> {
        self.expect_no_capture("asking for its end")?;
        self.queue.query()
    }

    /// Returns true if the stream is being captured: work is recorded, and does not run.
    pub fn is_captured(&self) -> Result<bool, GpuError> {
        self.gpu.bind()?;
        Ok(self.queue.is_captured())
    }

    /// Returns the copies between host and GPU so far by calls that name this stream.
    pub fn copy_stats(&self) -> CopyStats {
        let [to_device, from_device] = [0, 1].map(|way| self.queue.copied_bytes[way].load(Ordering::Relaxed));
        CopyStats { to_device, from_device }
    }

    /// Records an event behind all work that is enqueued.
    pub fn record(&self) -> Result<Event, GpuError> {
        let event = Event::new(&self.gpu)?;
        event.record(self)?;
        Ok(event)
    }

    /// Makes work that is enqueued later wait for the event.
    pub fn wait(&self, event: &Event) -> Result<(), GpuError> {
        if event.is_captured() {
            // A capture of the other stream captures this one too from here on.
            self.queue.share();
        }
        self.queue.stream.wait(&event.event).or_gpu_error("cuStreamWaitEvent")
    }

    /// Enqueues by one call of the driver what uses this memory, which then lasts as long.
    pub(crate) fn enqueue(
        &self,
        memories: &[&Arc<Memory>],
        call: &'static str,
        enqueue: impl FnOnce(CUstream) -> CUresult,
    ) -> Result<(), GpuError> {
        self.gpu.bind()?;
        let mut captured = lock(&self.queue.captured);
        let outcome = enqueue(self.queue.stream.cu_stream()).or_gpu_error(call);
        self.keep(&mut captured, memories);
        outcome
    }

    /// Keeps memory until the work that is enqueued so far is done.
    pub(crate) fn record_use(&self, memory: &Arc<Memory>) {
        let mut captured = lock(&self.queue.captured);
        self.keep(&mut captured, &[memory]);
    }

    /// Adds a hook that the graph calls before each launch. Returns false where no
    /// [`Stream::capture`] is in progress: a graph of another library calls no hook.
    pub fn add_replay_hook(&self, whose: &Arc<dyn ReplayHook>) -> bool {
        let mut captured = lock(&self.queue.captured);
        if let Some(kept) = &mut *captured {
            kept.hooks.push(whose.clone());
        }
        captured.is_some()
    }

    fn keep(&self, captured: &mut Option<CapturedRefs>, memories: &[&Arc<Memory>]) {
        let elsewhere = captured.is_none() && self.queue.is_shared() && self.queue.is_captured();
        for &memory in memories {
            memory.record_stream(&self.queue);
            match captured {
                Some(kept) => kept.memories.push(memory.clone()),
                // A graph of another library does not tell when it is destroyed, so the memory is
                // leaked.
                None if elsewhere => std::mem::forget(memory.clone()),
                None => (),
            }
        }
    }

    /// Enqueues a copy from or to the host's memory, and waits for it.
    pub(crate) fn copy_and_wait(
        &self,
        memory: &Arc<Memory>,
        call: &'static str,
        enqueue: impl FnOnce(CUstream) -> CUresult,
    ) -> Result<(), GpuError> {
        self.expect_no_capture("a copy from or to memory of the host")?;
        self.enqueue(&[memory], call, enqueue)?;
        self.queue.stream.synchronize().or_gpu_error("cuStreamSynchronize")
    }

    /// Fails while the stream is captured, by this crate or by others.
    pub(crate) fn expect_no_capture(&self, what: &'static str) -> Result<(), GpuError> {
        self.gpu.bind()?;
        if self.queue.is_captured() { Err(GpuError::Capturing { what }) } else { Ok(()) }
    }

    /// Begins or ends a capture by a call of the driver. Meanwhile nothing else can be enqueued.
    pub(crate) fn change_capture<T>(
        &self,
        to: Option<CapturedRefs>,
        change: impl FnOnce(CUstream) -> Result<T, GpuError>,
    ) -> Result<(T, Option<CapturedRefs>), GpuError> {
        self.gpu.bind()?;
        let mut captured = lock(&self.queue.captured);
        let outcome = change(self.queue.stream.cu_stream());
        if outcome.is_err() && to.is_some() {
            return outcome.map(|good| (good, None));
        }
        let kept = std::mem::replace(&mut *captured, to);
        // Dropping the last handle of memory takes this lock.
        drop(captured);
        outcome.map(|good| (good, kept))
    }
}

impl PartialEq for Stream {
    fn eq(&self, other: &Stream) -> bool {
        Arc::ptr_eq(&self.queue, &other.queue)
    }
}

impl Eq for Stream {}

impl Queue {
    /// Counts bytes that were copied from the host.
    pub(crate) fn count_written(&self, bytes: usize) {
        self.copied_bytes[0].fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts bytes that were copied to the host.
    pub(crate) fn count_read(&self, bytes: usize) {
        self.copied_bytes[1].fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn share(&self) {
        self.shared.store(true, Ordering::Relaxed);
    }

    fn is_shared(&self) -> bool {
        self.shared.load(Ordering::Relaxed)
    }

    pub(crate) fn is_captured(&self) -> bool {
        // SAFETY: the stream is alive.
        let status = unsafe { result::stream::is_capturing(self.stream.cu_stream()) };
        status != Ok(CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }

    fn query(&self) -> Result<bool, GpuError> {
        // SAFETY: the stream is alive.
        match unsafe { cudarc::driver::sys::cuStreamQuery(self.stream.cu_stream()) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            answer => answer.or_gpu_error("cuStreamQuery").map(|()| true),
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        !self.is_captured() && self.query() == Ok(true)
    }

    /// Records an event behind all enqueued work. `None` while the stream is captured, or another
    /// thread enqueues: a launch may wait for room.
    pub(crate) fn mark(&self) -> Option<CudaEvent> {
        let captured = match self.captured.try_lock() {
            Ok(captured) => captured,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        if captured.is_some() || self.stream.context().bind_to_thread().is_err() || self.is_captured() {
            return None;
        }
        self.stream.record_event(None).ok()
    }
}
