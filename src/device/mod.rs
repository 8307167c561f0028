//! Ranks on GPUs: the schedules of the CPU engine, carried out by kernels over device memory.
//!
//! An operation is enqueued on a stream and returns; what goes wrong later, every later call says, and
//! [`DeviceCommunicator::check`] and [`DeviceCommunicator::synchronize`] say it at once. Ranks meet as
//! those of the CPU do: [`Communicator::on`] makes a communicator of GPUs out of one of threads or
//! processes.

mod collectives;
mod combine;
mod enqueue;
mod exchange;
mod group;
mod job;
mod join;
mod lending;
mod lowering;
mod order;
mod plan;
mod progress;
mod pump;
mod replay;
mod residency;
mod rooted;
mod transfer;
mod watch;

pub use combine::Combine;
pub use group::DeviceGroup;
pub use unisono_cuda::device::{
    Buffer, DeviceBuffer, DeviceBufferMut, DeviceReduction, Event, Gpu, GpuError, Graph, Stream, View,
    ViewMut, gpus,
};

use crate::communicator::Communicator;
use crate::error::Result;
use crate::schedule::{Algorithm, Collective, Rank};
use enqueue::State;
use progress::Progress;
use residency::Seats;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use unisono_transports::p2p::Endpoint;
use watch::Bell;

/// A group of ranks, each on a GPU, that carry out collective operations together.
///
/// Every rank holds one of its own and calls the same operations in the same order; each call is enqueued
/// on a stream and returns. Operations of one communicator follow each other also on different streams. The
/// first error but misuse poisons it, on every rank; the GPU is unharmed.
///
/// Buffers are those of a GPU, and are there until the call has returned and the stream is done with them:
///
/// ```compile_fail,E0277
/// # use unisono::{Sum, device::{DeviceCommunicator, Stream}};
/// fn memory_of_the_host(comm: &DeviceCommunicator, stream: &Stream) {
///     comm.all_reduce(stream, &mut vec![1.0f32; 8], Sum);
/// }
/// ```
///
/// ```compile_fail,E0308
/// # use unisono::{Communicator, Sum, device::Buffer};
/// fn memory_of_a_gpu(comm: &Communicator, values: &mut Buffer<f32>) {
///     comm.all_reduce::<f32>(values, Sum);
/// }
/// ```
///
/// ```compile_fail,E0382
/// # use unisono::{Sum, device::{Buffer, DeviceCommunicator, Stream}};
/// fn freed(comm: &DeviceCommunicator, stream: &Stream, mut values: Buffer<f32>) {
///     drop(values);
///     comm.all_reduce(stream, &mut values, Sum);
/// }
/// ```
#[derive(Clone)]
pub struct DeviceCommunicator {
    shared: Arc<Owner>,
}

/// What callers hold; the threads that watch and move hold less.
struct Owner {
    shared: Arc<Shared>,
    /// Moves messages by way of the host, where some go there.
    pump: Option<JoinHandle<()>>,
}

impl Deref for Owner {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

struct Shared {
    /// Carries set-up, notes and aborts.
    base: Communicator,
    endpoint: Endpoint,
    /// Who follows whom in rings, chains and trees.
    order: Vec<Rank>,
    /// Held across calls of the driver, which may wait for kernels.
    state: Mutex<State>,
    progress: Progress,
    /// Of the watch, and of the pump where there is one.
    bells: [Arc<Bell>; 2],
    /// Room for the blocks of its launches, until it is dropped.
    _seats: Seats,
}

impl Communicator {
    /// The same ranks on GPUs; this one on `gpu`. Every rank must call it.
    ///
    /// # Errors
    /// If a rank has no room on its GPU, in memory or for blocks that run at once, or ranks cannot meet again.
    pub fn on(&self, gpu: &Gpu) -> Result<DeviceCommunicator> {
        join::join(self, gpu)
    }
}

impl DeviceCommunicator {
    /// This rank's number, from 0.
    pub fn rank(&self) -> Rank {
        self.shared.base.rank()
    }

    /// How many ranks there are.
    pub fn ranks(&self) -> usize {
        self.shared.base.ranks()
    }

    /// The GPU of this rank.
    pub fn gpu(&self) -> &Gpu {
        self.shared.endpoint.arena().gpu()
    }

    /// The order in which ranks stand in rings, and in chains and trees from and to a root: each beside those that its GPU reaches best.
    pub fn ring(&self) -> &[Rank] {
        &self.shared.order
    }

    /// Whether the smallest messages go in lines of 16 bytes that are stored whole: where the GPUs of all ranks know how.
    pub fn has_wide_lines(&self) -> bool {
        self.shared.endpoint.arena().layout().sizes().wide_lines
    }

    /// Uses `algorithm` for its collective from now on; every rank must do the same.
    pub fn use_algorithm(&self, algorithm: &'static Algorithm) {
        self.shared.lock().chosen[algorithm.collective as usize] = Some(algorithm);
    }

    /// Leaves the choice of algorithms for `collective` to the library again; every rank must do the same.
    pub fn use_any_algorithm(&self, collective: Collective) {
        self.shared.lock().chosen[collective as usize] = None;
    }

    /// The algorithm of the last operation of this rank.
    pub fn last_algorithm(&self) -> Option<&'static Algorithm> {
        self.shared.lock().last_algorithm
    }

    /// Says whether all is well, as far as is known now.
    ///
    /// # Errors
    /// The first error of an operation of this communicator.
    pub fn check(&self) -> Result<()> {
        self.shared.look()
    }

    /// Waits for all that is enqueued on `stream`.
    ///
    /// # Errors
    /// As [`DeviceCommunicator::check`].
    pub fn synchronize(&self, stream: &Stream) -> Result<()> {
        let ended = stream.synchronize();
        self.shared.look()?;
        ended.map_err(|error| self.shared.base.place(error.into()))
    }

    /// Ends this communicator on all ranks, from any thread: launches under way end within milliseconds.
    pub fn abort(&self, reason: &str) {
        self.shared.base.abort(reason);
        self.shared.endpoint.abort();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // What a panic leaves half done is seen by every later call: sequence numbers differ between ranks.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Owner {
    /// What others still need of this rank is first brought on its way, and other processes get a while to leave its memory,
    /// which goes when this one ends. Kernels end after their timeout, whatever happens; the others hear that this rank
    /// has left when its own are over.
    fn drop(&mut self) {
        if self.shared.base.is_forked() {
            // The threads are the parent's, and so is the GPU.
            std::mem::forget(self.pump.take());
            return;
        }
        let open = self.shared.endpoint.is_open_elsewhere();
        if self.pump.is_some() || open {
            self.shared.finish();
        }
        if !open || self.shared.rest() {
            self.shared.endpoint.arena().withdraw();
            self.shared.lock().lendings.iter().for_each(|lending| lending.withdraw());
        }
        self.shared.bells.iter().for_each(|bell| bell.close());
        if let Some(pump) = self.pump.take() {
            // A thread that panicked moves nothing any more.
            let _ = pump.join();
        }
        watch::leave(&self.shared);
    }
}

impl std::fmt::Debug for DeviceCommunicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DeviceCommunicator(rank {} of {}, {:?})", self.rank(), self.ranks(), self.gpu())
    }
}
