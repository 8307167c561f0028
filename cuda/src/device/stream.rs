//! Streams: work in one stream runs in the order of the calls, after the calls return.

use super::capture_mode::RelaxedCapture;
use super::error::{GpuError, IntoGpuResult};
use super::event::Event;
use super::foreign_graph;
use super::gpu::{Gpu, lock};
use super::graph::ReplayHook;
use super::mark::Mark;
use super::memory::{Memory, MemoryRef};
use cudarc::driver::sys::{CUresult, CUstream, CUstreamCaptureStatus};
use cudarc::driver::{CudaStream, result};
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

/// Tells by whom the work that is enqueued in a stream is recorded, instead of run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureState {
    /// Nothing: work runs.
    None,
    /// [`Stream::capture`].
    Own,
    /// Another library, by functions of the driver.
    Foreign,
}

/// Orders work of one stream after work of another, again and again, by one event.
pub struct StreamFollower {
    gpu: Gpu,
    mark: Mark,
}

impl StreamFollower {
    /// Makes a follower for streams of `gpu`.
    ///
    /// # Errors
    /// The driver fails.
    pub fn new(gpu: &Gpu) -> Result<Self, GpuError> {
        gpu.bind()?;
        Ok(Self { gpu: gpu.clone(), mark: Mark::new()? })
    }

    /// Makes work that is enqueued in `later` from now on wait for all work that is enqueued in
    /// `sooner` now.
    ///
    /// # Errors
    /// [`GpuError::Capturing`] if `sooner` is being captured: what it ran before cannot be waited
    /// for then. [`GpuError::WrongGpu`] for a stream of another GPU than the follower's.
    pub fn follow(&self, later: &Stream, sooner: &Stream) -> Result<(), GpuError> {
        for stream in [later, sooner] {
            stream.gpu.check_same_gpu(&self.gpu, "an event")?;
        }
        sooner.expect_no_capture("waiting for its earlier work")?;
        // The lock keeps a capture of this library from beginning between the question and the
        // call.
        let captured = lock(&sooner.queue.captured);
        if captured.is_some() {
            return Err(GpuError::Capturing { what: "waiting for its earlier work" });
        }
        // SAFETY: both streams are alive and of this GPU, whose context is current.
        unsafe {
            self.mark.record(sooner.queue.stream.cu_stream())?;
            self.mark.block(later.queue.stream.cu_stream())
        }
    }
}

/// Bytes that went between memory of the host and of the GPU for a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyStats {
    /// Bytes copied from the host.
    pub to_device: u64,
    /// Bytes copied to the host.
    pub from_device: u64,
}

/// Contents of a graph: the memory that its work uses, and the hooks of that work, one for each
/// launch that asked for it.
#[derive(Default)]
pub(crate) struct CapturedRefs {
    pub(crate) memories: Vec<Arc<Memory>>,
    pub(crate) hooks: Vec<Arc<dyn ReplayHook>>,
}

impl Stream {
    pub(crate) fn new(gpu: Gpu, stream: Arc<CudaStream>) -> Self {
        Self { gpu, queue: Arc::new(Queue::new(stream)) }
    }

    /// Wraps a stream of cudarc, which stays usable there. Work enqueued through both comes in the
    /// order of the calls.
    pub fn from_cudarc(gpu: &Gpu, stream: Arc<CudaStream>) -> Result<Self, GpuError> {
        if stream.context().cu_ctx() != gpu.context().cu_ctx() {
            let (owner, user) = (stream.context().ordinal(), gpu.ordinal());
            return Err(GpuError::WrongGpu { what: "a stream", owner, user });
        }
        let wrapped = Self::new(gpu.clone(), stream);
        wrapped.queue.share();
        Ok(wrapped)
    }

    /// The stream of a queue that is there already.
    pub(crate) fn of(gpu: Gpu, queue: Arc<Queue>) -> Self {
        Self { gpu, queue }
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
        self.queue.synchronize()
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

    /// Returns what captures the stream. The driver is asked only if another library can capture
    /// it.
    pub fn capture_state(&self) -> CaptureState {
        if lock(&self.queue.captured).is_some() {
            CaptureState::Own
        } else if self.queue.is_shared() && self.queue.is_captured() {
            CaptureState::Foreign
        } else {
            CaptureState::None
        }
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
        self.gpu.bind()?;
        // SAFETY: both are alive.
        unsafe { event.mark.block(self.queue.stream.cu_stream()) }
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
        if !memories.is_empty() {
            let is_foreign = captured.is_none() && self.queue.is_shared() && self.queue.is_captured();
            self.keep(&mut captured, is_foreign, memories);
        }
        outcome
    }

    /// Keeps memory until the work that is enqueued so far is done.
    pub(crate) fn record_use(&self, memory: &Arc<Memory>) {
        self.record_use_in(self.capture_state(), memory);
    }

    /// The same, where the caller knows what captures the stream and need not ask the driver.
    pub(crate) fn record_use_in(&self, capture: CaptureState, memory: &Arc<Memory>) {
        let mut captured = lock(&self.queue.captured);
        self.keep(&mut captured, capture == CaptureState::Foreign, &[memory]);
    }

    /// Records that the work that is enqueued so far uses this memory. `capture` is what captures
    /// the stream. The memory then lasts until that work is done, and as long as a graph that
    /// repeats it.
    pub fn record_memory(&self, capture: CaptureState, memories: &[MemoryRef]) {
        let memories: Vec<&Arc<Memory>> = memories.iter().map(MemoryRef::memory).collect();
        self.keep(&mut lock(&self.queue.captured), capture == CaptureState::Foreign, &memories);
    }

    /// Adds a hook that the graph calls at each of its launches, with the number of times that it
    /// was added. Returns false where no [`Stream::capture`] is in progress: a graph of another
    /// library calls no hook.
    pub fn add_replay_hook(&self, whose: &Arc<dyn ReplayHook>) -> bool {
        let mut captured = lock(&self.queue.captured);
        if let Some(kept) = &mut *captured {
            kept.hooks.push(whose.clone());
        }
        captured.is_some()
    }

    fn keep(&self, captured: &mut Option<CapturedRefs>, is_foreign: bool, memories: &[&Arc<Memory>]) {
        for &memory in memories {
            memory.record_stream(&self.queue);
            if let Some(kept) = captured {
                kept.memories.push(memory.clone());
            }
        }
        if captured.is_some() || !is_foreign {
            return;
        }
        let held: Vec<Arc<Memory>> = memories.iter().map(|&memory| memory.clone()).collect();
        // SAFETY: the stream is alive, and its capture goes on while the caller enqueues in it.
        let kept = unsafe { foreign_graph::keep(self.queue.stream.cu_stream(), held.clone()) };
        if kept.is_err() {
            // The graph cannot tell when it is destroyed, so the memory has to outlive the
            // process's use of the GPU.
            std::mem::forget(held);
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
        let _exempt = RelaxedCapture::enter();
        self.enqueue(&[memory], call, enqueue)?;
        self.queue.synchronize()
    }

    /// Fails while the stream is captured, by this crate or by others.
    pub(crate) fn expect_no_capture(&self, what: &'static str) -> Result<(), GpuError> {
        self.gpu.bind()?;
        if self.capture_state() == CaptureState::None { Ok(()) } else { Err(GpuError::Capturing { what }) }
    }

    /// Begins or ends a capture by a call of the driver. Meanwhile nothing else can be enqueued.
    pub(crate) fn change_capture<T>(
        &self,
        replacement: Option<CapturedRefs>,
        change: impl FnOnce(CUstream) -> Result<T, GpuError>,
    ) -> Result<(T, Option<CapturedRefs>), GpuError> {
        self.gpu.bind()?;
        let mut captured = lock(&self.queue.captured);
        let outcome = change(self.queue.stream.cu_stream());
        if outcome.is_err() && replacement.is_some() {
            return outcome.map(|good| (good, None));
        }
        let kept = std::mem::replace(&mut *captured, replacement);
        // Dropping the last handle of memory takes this lock.
        drop(captured);
        outcome.map(|good| (good, kept))
    }
}

impl PartialEq for Stream {
    /// Returns true for the same stream of the driver, even if it was wrapped twice.
    fn eq(&self, other: &Stream) -> bool {
        self.queue.stream.cu_stream() == other.queue.stream.cu_stream()
    }
}

impl Eq for Stream {}

impl Queue {
    pub(crate) fn new(stream: Arc<CudaStream>) -> Self {
        let (shared, captured, copied) = (AtomicBool::new(false), Mutex::new(None), Default::default());
        Self { stream, shared, captured, copied_bytes: copied }
    }

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
        match unsafe { result::stream::is_capturing(self.stream.cu_stream()) } {
            Ok(status) => status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE,
            // Other errors are those of a GPU that has failed. Waits for it must learn of that, and
            // would not if they took its streams for captured ones.
            Err(error) => error.0 == CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
        }
    }

    pub(crate) fn synchronize(&self) -> Result<(), GpuError> {
        let _exempt = RelaxedCapture::enter();
        // SAFETY: the stream is alive.
        unsafe { result::stream::synchronize(self.stream.cu_stream()) }.or_gpu_error("cuStreamSynchronize")
    }

    fn query(&self) -> Result<bool, GpuError> {
        let _exempt = RelaxedCapture::enter();
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
    pub(crate) fn mark(&self) -> Option<Mark> {
        let captured = match self.captured.try_lock() {
            Ok(captured) => captured,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        if captured.is_some() || self.is_captured() {
            return None;
        }
        let (previous, context) = (result::ctx::get_current().ok()?, self.stream.context().cu_ctx());
        if previous == Some(context) {
            return self.mark_in_context();
        }
        // SAFETY: the stream keeps its context, and the other one was current before.
        unsafe {
            result::ctx::set_current(context).ok()?;
            let mark = self.mark_in_context();
            // Memory of one GPU may be used by streams of another. The caller goes on with its own.
            previous.map(|previous| result::ctx::set_current(previous));
            mark
        }
    }

    fn mark_in_context(&self) -> Option<Mark> {
        let mark = Mark::new().ok()?;
        // SAFETY: the stream is alive, and of the context that is current.
        unsafe { mark.record(self.stream.cu_stream()) }.ok()?;
        Some(mark)
    }
}
