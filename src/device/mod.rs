//! Ranks on GPUs: the schedules of the CPU engine, carried out by kernels over device memory.
//!
//! An operation is enqueued on a stream and returns; what goes wrong later, every later call says, and
//! [`DeviceCommunicator::check`] and [`DeviceCommunicator::synchronize`] say it at once. Ranks meet as
//! those of the CPU do: [`Communicator::to_device`] makes a communicator of GPUs out of one of threads or
//! processes.

mod all_to_all;
mod collectives;
mod graph;
mod join;
mod launch;
mod launch_state;
mod lower;
mod monitor;
mod occupancy;
mod op;
mod p2p;
mod p2p_program;
mod plan;
mod proxy;
mod reduce_op;
mod registered;
mod rooted;
mod topology;

pub use crate::device::p2p::DeviceGroup;
pub use crate::device::reduce_op::AnyReduceOp;
pub use unisono_cuda::device::{
    Buffer, DeviceBuffer, DeviceBufferMut, DeviceReduceOp, Event, Gpu, GpuError, Graph, Stream, View,
    ViewMut, gpus,
};

use crate::communicator::Communicator;
use crate::device::launch::CommState;
use crate::device::launch_state::LaunchState;
use crate::device::monitor::Notifier;
use crate::device::occupancy::BlockReservation;
use crate::error::Result;
use crate::schedule::{Algorithm, Collective, Rank};
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use unisono_transports::gpu::Endpoint;

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
    proxy: Option<JoinHandle<()>>,
}

impl Deref for Owner {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

struct Shared {
    /// Carries set-up, notes and aborts.
    host_comm: Communicator,
    endpoint: Endpoint,
    /// Who follows whom in rings, chains and trees.
    ring_order: Vec<Rank>,
    /// Held across calls of the driver, which may wait for kernels.
    state: Mutex<CommState>,
    launch_state: LaunchState,
    /// Of the watch, and of the pump where there is one.
    notifiers: [Arc<Notifier>; 2],
    /// Room for the blocks of its launches, until it is dropped.
    _blocks: BlockReservation,
}

impl Communicator {
    /// The same ranks on GPUs; this one on `gpu`. Every rank must call it.
    ///
    /// # Errors
    /// If a rank has no room on its GPU, in memory or for blocks that run at once, or ranks cannot meet again.
    pub fn to_device(&self, gpu: &Gpu) -> Result<DeviceCommunicator> {
        join::join(self, gpu)
    }
}

impl DeviceCommunicator {
    /// This rank's number, from 0.
    pub fn rank(&self) -> Rank {
        self.shared.host_comm.rank()
    }

    /// How many ranks there are.
    pub fn size(&self) -> usize {
        self.shared.host_comm.size()
    }

    /// The GPU of this rank.
    pub fn gpu(&self) -> &Gpu {
        self.shared.endpoint.memory().gpu()
    }

    /// The order in which ranks stand in rings, and in chains and trees from and to a root: each beside those that its GPU reaches best.
    pub fn ring_order(&self) -> &[Rank] {
        &self.shared.ring_order
    }

    /// Whether the smallest messages go in lines of 16 bytes that are stored whole: where the GPUs of all ranks know how.
    pub fn uses_ll128(&self) -> bool {
        self.shared.endpoint.memory().layout().geometry().ll128
    }

    /// Uses the algorithm called `name` for `collective` in every later operation; `None` leaves the
    /// choice to the library again. Every rank must make the same call.
    ///
    /// # Errors
    /// As [`Communicator::set_algorithm`].
    ///
    /// ```no_run
    /// use unisono::device::DeviceCommunicator;
    /// use unisono::schedule::Collective;
    ///
    /// fn use_ring(comm: &DeviceCommunicator) -> unisono::Result<()> {
    ///     comm.set_algorithm(Collective::AllReduce, Some("ring"))
    /// }
    /// ```
    pub fn set_algorithm(&self, collective: Collective, name: Option<&str>) -> Result<()> {
        let find = |name| self.shared.host_comm.algorithm_by_name(collective, name);
        self.shared.lock().overrides[collective as usize] = name.map(find).transpose()?;
        Ok(())
    }

    /// Uses an algorithm of the caller for its collective; see [`Communicator::set_custom_algorithm`].
    ///
    /// # Errors
    /// As [`Communicator::set_custom_algorithm`].
    pub fn set_custom_algorithm(&self, algorithm: &'static Algorithm) -> Result<()> {
        self.shared.host_comm.prove_algorithm(algorithm)?;
        self.set_custom_algorithm_unchecked(algorithm)
    }

    /// As [`DeviceCommunicator::set_custom_algorithm`], without the proof of the schedule.
    ///
    /// # Errors
    /// As [`Communicator::set_custom_algorithm_unchecked`].
    pub fn set_custom_algorithm_unchecked(&self, algorithm: &'static Algorithm) -> Result<()> {
        self.shared.host_comm.register_algorithm(algorithm)?;
        self.shared.lock().overrides[algorithm.collective as usize] = Some(algorithm);
        Ok(())
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
        self.shared.poll()
    }

    /// Waits for all that is enqueued on `stream`.
    ///
    /// # Errors
    /// As [`DeviceCommunicator::check`].
    pub fn synchronize(&self, stream: &Stream) -> Result<()> {
        let ended = stream.synchronize();
        self.shared.poll()?;
        ended.map_err(|error| self.shared.host_comm.attach_rank(error.into()))
    }

    /// Ends this communicator on all ranks, from any thread: launches under way end within milliseconds.
    pub fn abort(&self, reason: &str) {
        self.shared.host_comm.abort(reason);
        self.shared.endpoint.abort();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, CommState> {
        // What a panic leaves half done is seen by every later call: sequence numbers differ between ranks.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Owner {
    /// What others still need of this rank is first brought on its way, and other processes get a while to leave its memory,
    /// which goes when this one ends. Kernels end after their timeout, whatever happens; the others hear that this rank
    /// has left when its own are over.
    fn drop(&mut self) {
        if self.shared.host_comm.is_forked() {
            // The threads are the parent's, and so is the GPU.
            std::mem::forget(self.proxy.take());
            return;
        }
        let open = self.shared.endpoint.is_open_in_other_process();
        if self.proxy.is_some() || open {
            self.shared.wait_last_launch();
        }
        if !open || self.shared.quiesce() {
            self.shared.endpoint.memory().withdraw();
            self.shared.lock().window_sets.iter().for_each(|lending| lending.withdraw());
        }
        self.shared.notifiers.iter().for_each(|bell| bell.close());
        if let Some(pump) = self.proxy.take() {
            // A thread that panicked moves nothing any more.
            let _ = pump.join();
        }
        crate::device::monitor::close(&self.shared);
    }
}

impl std::fmt::Debug for DeviceCommunicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DeviceCommunicator(rank {} of {}, {:?})", self.rank(), self.size(), self.gpu())
    }
}
