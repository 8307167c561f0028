//! Graphs that repeat operations: a launch of one takes its turn among those of the communicator, and is watched like them.

use super::Shared;
use std::sync::Weak;
use unisono_cuda::device::{GpuError, Repeat, Stream};

/// What graphs with operations of a communicator ask.
pub(super) struct Replay {
    pub(super) shared: Weak<Shared>,
}

impl Repeat for Replay {
    fn around(
        &self,
        stream: &Stream,
        launch: &mut dyn FnMut() -> Result<(), GpuError>,
    ) -> Result<(), GpuError> {
        let shared = self.shared.upgrade().filter(|shared| shared.bells.iter().all(|bell| bell.is_open()));
        let why = "the communicator whose operations it repeats has been dropped".to_owned();
        shared.ok_or(GpuError::Ended { why })?.replay(stream, launch)
    }
}

impl Shared {
    fn replay(
        &self,
        stream: &Stream,
        launch: &mut dyn FnMut() -> Result<(), GpuError>,
    ) -> Result<(), GpuError> {
        let sound = self.base.with(|engine| engine.listen(None));
        sound.map_err(|error| GpuError::Ended { why: error.to_string() })?;
        let state = self.lock();
        self.start_work();
        let launched =
            self.follow(stream).and_then(|()| launch()).and_then(|()| self.lead(&state, stream)).map(drop);
        self.progress.started(state.recorded.filter(|_| launched.is_ok()));
        launched
    }
}
