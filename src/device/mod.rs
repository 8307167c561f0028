//! Ranks on GPUs. Kernels run the schedules of the CPU engine on device memory.
//!
//! A call enqueues an operation on a stream and returns. If the operation fails later, every later
//! call returns the error. [`DeviceCommunicator::check`] and [`DeviceCommunicator::synchronize`]
//! return it as soon as it is known. [`Communicator::to_device`] makes a communicator of GPUs from
//! a communicator of threads or processes.

mod all_to_all;
mod collectives;
#[cfg(any(test, feature = "fuzzing"))]
mod fuzzing;
mod graph;
mod join;
mod launch;
mod launch_state;
mod lower;
mod message_room;
mod monitor;
mod occupancy;
mod op;
mod p2p;
mod p2p_program;
mod placement;
mod plan;
mod proxy;
mod reduce_op;
mod registered;
mod rooted;
mod shape;
mod share_tables;
mod topology;

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use crate::device::fuzzing::cards as fuzz_cards;
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
use crate::error::{Error, ErrorKind, Result};
use crate::op_desc;
use crate::schedule::{Algorithm, Collective, PeerAccess, Rank};
use crate::select;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use unisono_cuda::device::StreamFollower;
use unisono_transports::gpu::Endpoint;

/// A group of ranks, each on a GPU, that carry out collective operations together.
///
/// Every rank holds its own communicator and calls the same operations in the same order. Each call
/// is enqueued on a stream and returns. Operations of one communicator run in order, even on
/// different streams. An error that [is poisoning](crate::Error::is_poisoning) ends the
/// communicator on every rank, but the GPU stays usable.
///
/// Buffers are memory of a GPU. They must live until the call has returned and the stream has
/// finished with them:
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

/// The state that the handles of callers share. The monitor and the proxy thread hold only
/// `Shared`.
struct Owner {
    shared: Arc<Shared>,
    /// The thread that monitors the communicator.
    monitor: Option<JoinHandle<()>>,
    /// The thread that moves messages through the host, if any messages need it.
    proxy: Option<JoinHandle<()>>,
}

impl Deref for Owner {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

struct Shared {
    /// The communicator for set-up, control messages and aborts.
    host_comm: Communicator,
    endpoint: Endpoint,
    /// The order of ranks in rings, chains and trees.
    ring_order: Vec<Rank>,
    /// The state that is locked during calls of the driver, which may wait for kernels.
    state: Mutex<CommState>,
    launch_state: LaunchState,
    /// Orders launches on different streams.
    follower: StreamFollower,
    /// Notifiers of the monitor and of the proxy, if there is a proxy.
    notifiers: [Arc<Notifier>; 2],
    /// Reserves blocks for the launches of this communicator until it is dropped.
    _blocks: BlockReservation,
}

impl Communicator {
    /// Makes a communicator of the same ranks on GPUs, with this rank on `gpu`. Every rank must
    /// call it.
    ///
    /// # Errors
    /// Fails if a GPU has too little memory, if too few multiprocessors are free for the blocks
    /// that must run at once, or if ranks cannot connect. If ranks are threads of one process and
    /// share a GPU, each needs a hardware queue, and one more queue is needed.
    /// `CUDA_DEVICE_MAX_CONNECTIONS` sets the number of queues before the program starts. The
    /// default is 8, and the largest value is 32.
    ///
    /// ```no_run
    /// use unisono::{Communicator, Sum, device::Gpu};
    ///
    /// let comm = Communicator::from_env()?;
    /// let gpu = Gpu::open(0)?;
    /// let (device, stream) = (comm.to_device(&gpu)?, gpu.stream()?);
    /// let mut values = gpu.upload(&[1.0f32; 1000])?;
    /// device.all_reduce(&stream, &mut values, Sum)?;
    /// device.synchronize(&stream)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn to_device(&self, gpu: &Gpu) -> Result<DeviceCommunicator> {
        join::join(self, gpu)
    }
}

impl DeviceCommunicator {
    /// Returns this rank's number, from 0.
    pub fn rank(&self) -> Rank {
        self.shared.host_comm.rank()
    }

    /// Returns the number of ranks.
    pub fn size(&self) -> usize {
        self.shared.host_comm.size()
    }

    /// Returns the GPU of this rank.
    pub fn gpu(&self) -> &Gpu {
        self.shared.endpoint.memory().gpu()
    }

    /// Returns true if data for `peer` goes through host memory, because the GPUs cannot reach each
    /// other or the link between them failed its test.
    pub fn is_staged(&self, peer: Rank) -> bool {
        self.shared.endpoint.is_staged(peer)
    }

    /// Returns the number of slices of one operation that move at the same time. It is at most the
    /// number in the settings (`UNISONO_GPU_CHANNELS`), and smaller if ranks or communicators share
    /// a GPU. A group of sends and receives serves the same number of peers at a time in each
    /// direction.
    pub fn channels(&self) -> usize {
        self.shared.endpoint.memory().layout().geometry().channels
    }

    /// Returns the order of the ranks in rings, chains and trees. Each rank is next to the ranks to
    /// which its GPU has the best connection.
    pub fn ring_order(&self) -> &[Rank] {
        &self.shared.ring_order
    }

    /// Returns true if the smallest messages use lines of 16 bytes that are stored at once, which
    /// the GPUs of all ranks must support.
    pub fn uses_ll128(&self) -> bool {
        self.shared.endpoint.memory().layout().geometry().ll128
    }

    /// Uses the algorithm called `name` for `collective` in every later operation. `None` leaves
    /// the choice to the library again. Every rank must make the same call.
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
        self.require_device_form(collective)?;
        let find = |name| self.shared.host_comm.algorithm_by_name(collective, name);
        let algorithm = name.map(find).transpose()?;
        algorithm.map_or(Ok(()), |algorithm| self.require_settable(algorithm))?;
        self.shared.lock().overrides[collective as usize] = algorithm;
        Ok(())
    }

    /// Uses an algorithm of the caller for its collective; see
    /// [`Communicator::set_custom_algorithm`].
    ///
    /// # Errors
    /// As [`Communicator::set_custom_algorithm`].
    pub fn set_custom_algorithm(&self, algorithm: &'static Algorithm) -> Result<()> {
        self.require_settable(algorithm)?;
        self.shared.host_comm.prove_algorithm(algorithm)?;
        self.set_custom_algorithm_unchecked(algorithm)
    }

    /// Uses an algorithm as [`DeviceCommunicator::set_custom_algorithm`] does, without the proof of
    /// the schedule.
    ///
    /// # Errors
    /// As [`Communicator::set_custom_algorithm_unchecked`].
    pub fn set_custom_algorithm_unchecked(&self, algorithm: &'static Algorithm) -> Result<()> {
        self.require_device_form(algorithm.collective)?;
        self.shared.host_comm.require_order(algorithm)?;
        self.require_settable(algorithm)?;
        op_desc::register_algorithm(algorithm, self.size());
        self.shared.lock().overrides[algorithm.collective as usize] = Some(algorithm);
        Ok(())
    }

    /// Refuses an algorithm that cannot run on these ranks.
    fn require_settable(&self, algorithm: &'static Algorithm) -> Result<()> {
        let settable = match algorithm.peer_access {
            // Operations on symmetric buffers use it, and operations on other buffers are refused.
            PeerAccess::ZeroCopy => Ok(()),
            _ => select::check_settable(algorithm, self.size(), self.shared.topology()),
        };
        settable.map_err(|error| self.shared.host_comm.attach_rank(error))
    }

    /// Refuses a collective that ranks on GPUs do not have.
    fn require_device_form(&self, collective: Collective) -> Result<()> {
        if !collective.is_scan() {
            return Ok(());
        }
        let text = format!("{collective} runs on CPU ranks only; call it on a `Communicator`");
        Err(self.shared.host_comm.attach_rank(Error::new(ErrorKind::Unsupported(text))))
    }

    /// Returns the algorithm of this rank's last operation.
    pub fn last_algorithm(&self) -> Option<&'static Algorithm> {
        self.shared.lock().last_algorithm
    }

    /// Fails with the first error of this communicator's operations that is known. The call never
    /// waits.
    ///
    /// # Errors
    /// The first error of an operation.
    pub fn check(&self) -> Result<()> {
        self.shared.poll()
    }

    /// Waits for all work on `stream`.
    ///
    /// # Errors
    /// As [`DeviceCommunicator::check`].
    pub fn synchronize(&self, stream: &Stream) -> Result<()> {
        let ended = stream.synchronize();
        self.shared.poll()?;
        ended.map_err(|error| {
            let is_failed = matches!(error, GpuError::Driver { .. });
            let error = self.shared.host_comm.attach_rank(error.into());
            // If a GPU has failed, its launches never end, so peers must not wait for it.
            if is_failed { self.shared.fail(error, self.shared.launch_state.op()) } else { error }
        })
    }

    /// Ends this communicator on all ranks, from any thread. Running kernels end within
    /// milliseconds.
    pub fn abort(&self, reason: &str) {
        self.shared.host_comm.abort(reason);
        self.shared.endpoint.abort();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, CommState> {
        // If a panic has left the state half changed, sequence numbers differ between ranks, and
        // later calls detect this.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Owner {
    /// Sends the data that peers still need, and gives other processes time to close this rank's
    /// memory, which is freed when this process ends. Kernels end at their timeout at the latest.
    /// When the kernels have ended, peers learn that this rank has left.
    fn drop(&mut self) {
        if self.shared.host_comm.is_forked() {
            // The threads and the GPU belong to the parent process.
            std::mem::forget((self.monitor.take(), self.proxy.take()));
            return;
        }
        let open = self.shared.endpoint.is_open_in_other_process();
        if self.proxy.is_some() || open {
            // If the GPU has failed, this returns an error, and nothing runs any more.
            let _ = self.shared.wait_until_idle();
        }
        if !open || self.shared.quiesce() {
            self.shared.endpoint.memory().withdraw();
            self.shared.lock().window_sets.iter().for_each(|window_set| window_set.withdraw());
        }
        self.shared.notifiers.iter().for_each(|notifier| notifier.close());
        // Neither thread may keep the communicator alive longer than its handles.
        for thread in self.monitor.take().into_iter().chain(self.proxy.take()) {
            // If the thread has panicked, there is nothing more to do.
            let _ = thread.join();
        }
        crate::device::monitor::close(&self.shared);
    }
}

impl std::fmt::Debug for DeviceCommunicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DeviceCommunicator(rank {} of {}, {:?})", self.rank(), self.size(), self.gpu())
    }
}
