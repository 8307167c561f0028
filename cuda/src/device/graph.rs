//! Graphs: work that is recorded once and enqueued many times.

use super::capture_mode::RelaxedCapture;
use super::error::{GpuError, IntoGpuResult};
use super::gpu::{Gpu, lock};
use super::memory::Memory;
use super::stream::{CapturedRefs, Stream};
use cudarc::driver::{result, sys};
use std::sync::{Arc, Mutex};

/// Work that was captured from a stream. The graph keeps the memory that the work uses.
pub struct Graph {
    gpu: Gpu,
    /// Calls of the driver on a graph must follow each other.
    handles: Mutex<Handles>,
    memories: Vec<Arc<Memory>>,
    /// Hooks in an order that all graphs share, because each hook holds a lock while a graph is
    /// launched. Each has the number of launches that asked for it.
    hooks: Vec<(Arc<dyn ReplayHook>, usize)>,
}

/// The owner of work that a graph repeats. It is asked at each launch: see
/// [`Stream::add_replay_hook`].
pub trait ReplayHook: Send + Sync {
    /// Calls `launch`, which enqueues the graph in `stream`, or refuses it. Enqueues the work that
    /// belongs before and after the graph around it. The graph repeats `launches` launches of the
    /// owner.
    ///
    /// # Errors
    /// The work cannot be done any more, or cannot be a part of another library's graph; or
    /// `launch` fails.
    fn wrap_launch(
        &self,
        stream: &Stream,
        launches: usize,
        launch: &mut dyn FnMut() -> Result<(), GpuError>,
    ) -> Result<(), GpuError>;
}

struct Handles {
    graph: sys::CUgraph,
    ready: sys::CUgraphExec,
}

// SAFETY: the driver's functions on graphs may be called by any thread, one at a time.
unsafe impl Send for Handles {}

/// A capture that has begun; ended when it is dropped.
struct Capture<'a> {
    stream: &'a Stream,
    ended: bool,
}

impl Stream {
    /// Captures the work that `enqueue` enqueues in this stream, instead of running it. Calls that
    /// wait for the stream, or copy between host and GPU, fail during the capture.
    pub fn capture<E: From<GpuError>>(
        &self,
        enqueue: impl FnOnce(&Stream) -> Result<(), E>,
    ) -> Result<Graph, E> {
        let capture = Capture::begin(self)?;
        enqueue(self)?;
        Ok(capture.end()?)
    }
}

impl<'a> Capture<'a> {
    fn begin(stream: &'a Stream) -> Result<Self, GpuError> {
        // This thread too may allocate meanwhile, and ask what has become of other streams' work.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        stream.expect_no_capture("another capture")?;
        stream.change_capture(Some(CapturedRefs::default()), |handle| {
            // SAFETY: the stream is alive.
            unsafe { result::stream::begin_capture(handle, mode) }.or_gpu_error("cuStreamBeginCapture")
        })?;
        Ok(Self { stream, ended: false })
    }

    fn end(mut self) -> Result<Graph, GpuError> {
        let (graph, kept) = self.stop()?;
        let gpu = self.stream.gpu().clone();
        let _exempt = RelaxedCapture::enter();
        // SAFETY: the graph was just made.
        match unsafe { result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0)) } {
            Ok(ready) => Ok(Graph {
                gpu,
                handles: Mutex::new(Handles { graph, ready }),
                memories: distinct(kept.memories),
                hooks: counted(kept.hooks),
            }),
            Err(error) => {
                // SAFETY: this is the only handle.
                let _ = unsafe { result::graph::destroy(graph) };
                Err(error).or_gpu_error("cuGraphInstantiate")
            }
        }
    }

    fn stop(&mut self) -> Result<(sys::CUgraph, CapturedRefs), GpuError> {
        self.ended = true;
        let (graph, kept) = self.stream.change_capture(None, |handle| {
            // SAFETY: the stream is alive.
            unsafe { result::stream::end_capture(handle) }.or_gpu_error("cuStreamEndCapture")
        })?;
        Ok((graph, kept.unwrap_or_default()))
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        if !self.ended
            && let Ok((graph, _)) = self.stop()
        {
            // SAFETY: this is the only handle.
            let _ = unsafe { result::graph::destroy(graph) };
        }
    }
}

fn address<T: ?Sized>(shared: &Arc<T>) -> usize {
    Arc::as_ptr(shared).cast::<()>().addr()
}

fn distinct(mut memories: Vec<Arc<Memory>>) -> Vec<Arc<Memory>> {
    memories.sort_by_key(address);
    memories.dedup_by_key(|memory| address(memory));
    memories
}

/// Returns each hook once, with the number of times that it was there.
fn counted(mut hooks: Vec<Arc<dyn ReplayHook>>) -> Vec<(Arc<dyn ReplayHook>, usize)> {
    hooks.sort_by_key(address);
    let same = hooks.chunk_by(|hook, next| address(hook) == address(next));
    same.map(|hooks| (hooks[0].clone(), hooks.len())).collect()
}

impl Graph {
    /// Enqueues the captured work. Fails if a hook refuses the launch.
    pub fn launch(&self, stream: &Stream) -> Result<(), GpuError> {
        stream.gpu().check_same_gpu(&self.gpu, "a graph")?;
        self.launch_wrapped(&self.hooks, stream)
    }

    fn launch_wrapped(
        &self,
        hooks: &[(Arc<dyn ReplayHook>, usize)],
        stream: &Stream,
    ) -> Result<(), GpuError> {
        match hooks.split_first() {
            Some(((first, launches), rest)) => {
                first.wrap_launch(stream, *launches, &mut || self.launch_wrapped(rest, stream))
            }
            None => self.enqueue(stream),
        }
    }

    fn enqueue(&self, stream: &Stream) -> Result<(), GpuError> {
        let handles = lock(&self.handles);
        let memories: Vec<&Arc<Memory>> = self.memories.iter().collect();
        stream.enqueue(&memories, "cuGraphLaunch", |handle| {
            // SAFETY: both are alive; the memory that the work uses is kept.
            unsafe { sys::cuGraphLaunch(handles.ready, handle) }
        })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let handles = lock(&self.handles);
        let _exempt = RelaxedCapture::enter();
        // SAFETY: these are the only handles. The driver finishes launches that are enqueued.
        let _ = self.gpu.bind().map(|()| unsafe {
            (result::graph::exec_destroy(handles.ready), result::graph::destroy(handles.graph))
        });
    }
}
