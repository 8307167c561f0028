//! Graphs that repeat operations. A launch of a graph is ordered with the other operations of its
//! communicator, and monitored like them.

use crate::device::Shared;
use std::sync::Weak;
use unisono_cuda::device::{CaptureState, GpuError, ReplayHook, Stream};

/// The hook that graphs with operations of a communicator call before a launch.
pub(super) struct CommReplayHook {
    pub(super) shared: Weak<Shared>,
}

impl ReplayHook for CommReplayHook {
    fn wrap_launch(
        &self,
        stream: &Stream,
        launches: usize,
        launch: &mut dyn FnMut() -> Result<(), GpuError>,
    ) -> Result<(), GpuError> {
        let shared =
            self.shared.upgrade().filter(|shared| shared.notifiers.iter().all(|notifier| notifier.is_open()));
        let why = "the communicator whose operations it repeats has been dropped".to_owned();
        shared.ok_or(GpuError::GraphInvalidated { why })?.replay_graph(stream, launches, launch)
    }
}

impl Shared {
    fn replay_graph(
        &self,
        stream: &Stream,
        launches: usize,
        launch: &mut dyn FnMut() -> Result<(), GpuError>,
    ) -> Result<(), GpuError> {
        let sound = self.host_comm.with_engine(|engine| engine.poll_events(None));
        sound.map_err(|error| GpuError::GraphInvalidated { why: error.to_string() })?;
        if stream.capture_state() == CaptureState::Foreign {
            // Launches are counted when they are enqueued, so the host would not know of
            // repetitions by the other library.
            let why = "another library captures the stream; let it capture the operations themselves";
            return Err(GpuError::GraphInvalidated { why: why.to_owned() });
        }
        self.wait_for_room()?;
        let state = self.lock();
        self.wake_workers();
        let capture = stream.capture_state();
        let launched = self.wait_for_last(stream, capture).and_then(|()| launch());
        if launched.is_ok() {
            if capture == CaptureState::None {
                self.endpoint.count_replayed(launches as u64);
            }
            self.record_last(&state, stream, capture, launches);
        }
        self.launch_state.end_enqueue(state.captured.filter(|_| launched.is_ok()));
        launched
    }
}
