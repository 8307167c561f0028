//! Checkpoints written by a thread while training goes on.

use crate::checkpoint::Snapshot;
use std::path::PathBuf;
use std::thread::JoinHandle;
use unisono::Communicator;
use unisono_nn::error::{Error, Result};

/// Thread that writes checkpoints, over a communicator of its own.
#[derive(Default)]
pub(super) struct CheckpointWriter {
    world: Option<Communicator>,
    writing: Option<JoinHandle<Result<PathBuf>>>,
}

impl CheckpointWriter {
    /// Starts to write a checkpoint, and returns its folder. All ranks must call this.
    pub(super) fn start(&mut self, snapshot: Snapshot, world: &Communicator, keep: usize) -> Result<PathBuf> {
        let communicator = match self.world.take() {
            Some(communicator) => communicator,
            // Training uses the communicator of the world meanwhile, and its operations run in one
            // order.
            None => world.duplicate()?,
        };
        // The communicator is kept for the next checkpoint, because making one is a collective.
        let (folder, for_thread) = (snapshot.folder(), communicator.clone());
        let write = move || snapshot.write(Some(&for_thread), keep);
        let thread = std::thread::Builder::new().name("checkpoint".to_owned()).spawn(write);
        let failed = |error| Error::Unsupported(format!("checkpoint.async: no thread: {error}"));
        (self.world, self.writing) = (Some(communicator), Some(thread.map_err(failed)?));
        Ok(folder)
    }

    /// Waits until the last checkpoint is complete.
    pub(super) fn finish(&mut self) -> Result<()> {
        let Some(writing) = self.writing.take() else { return Ok(()) };
        let panicked = |_| Error::invalid("the thread that writes a checkpoint panicked: a bug");
        writing.join().map_err(panicked)?.map(drop)
    }
}
