//! The communicator.

use crate::group::Group;
use crate::group_calls::require_no_group;
use crate::id::Id;
use crate::result::{NcclError, NcclStatus};
use cudarc::driver::{CudaContext, CudaStream};
use std::sync::Arc;
use unisono::device::{DeviceBuffer, DeviceBufferMut, DeviceCommunicator, Gpu, Stream};
use unisono::{Communicator, Config, Element};

/// Result of a call.
type Outcome = Result<NcclStatus, NcclError>;

/// Types of elements.
pub trait NcclType: Element {}

impl<T: Element> NcclType for T {}

/// Reductions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReduceOp {
    /// The sum.
    Sum,
    /// The product.
    Prod,
    /// The maximum.
    Max,
    /// The minimum.
    Min,
    /// The mean.
    Avg,
}

impl From<&ReduceOp> for unisono::ReduceOp {
    fn from(op: &ReduceOp) -> Self {
        match op {
            ReduceOp::Sum => Self::Sum,
            ReduceOp::Prod => Self::Prod,
            ReduceOp::Max => Self::Max,
            ReduceOp::Min => Self::Min,
            ReduceOp::Avg => Self::Avg,
        }
    }
}

/// A rank of a group of GPUs, with the stream on which its operations run.
///
/// Every rank calls the same operations in the same order. Each call is enqueued and returns.
pub struct Comm {
    pub(crate) comm: DeviceCommunicator,
    pub(crate) stream: Stream,
    cuda_stream: Arc<CudaStream>,
    host_comm: Communicator,
}

impl Comm {
    /// Makes the ranks of this process, one for each stream. Two streams may be of one GPU.
    ///
    /// One thread may drive all of them: no call waits for another rank.
    ///
    /// # Errors
    /// If there is no driver, a GPU has too little memory, or the environment has a wrong setting.
    pub fn from_devices(streams: Vec<Arc<CudaStream>>) -> Result<Vec<Self>, NcclError> {
        let comms = Communicator::local(streams.len())?;
        Self::on_streams(comms, streams)
    }

    /// Makes a rank of several processes or threads. Every rank must call it.
    ///
    /// Settings come from the environment: see [`Config::from_env`].
    ///
    /// # Errors
    /// [`NcclError::InvalidId`] for bytes that are no id. Otherwise as [`Comm::from_devices`], and
    /// if the ranks do not meet before the deadline.
    pub fn from_rank(
        stream: Arc<CudaStream>,
        rank: usize,
        world_size: usize,
        id: Id,
    ) -> Result<Self, NcclError> {
        let comm = Communicator::join(&id.unique_id()?, rank, world_size, &Config::from_env()?)?;
        if rank == 0 {
            id.release();
        }
        Self::from_communicator(stream, &comm)
    }

    /// Makes ranks on GPUs of the ranks of a communicator. Every rank must call it.
    ///
    /// # Errors
    /// As [`Comm::from_devices`].
    pub fn from_communicator(stream: Arc<CudaStream>, comm: &Communicator) -> Result<Self, NcclError> {
        let gpu = Gpu::open(stream.context().ordinal())?;
        Ok(Self {
            comm: comm.to_device(&gpu)?,
            stream: Stream::from_cudarc(&gpu, Arc::clone(&stream))?,
            cuda_stream: stream,
            host_comm: comm.clone(),
        })
    }

    /// Connects ranks that are in one process. They wait for each other, so each has a thread.
    fn on_streams(comms: Vec<Communicator>, streams: Vec<Arc<CudaStream>>) -> Result<Vec<Self>, NcclError> {
        std::thread::scope(|scope| {
            let start = |(comm, stream): (Communicator, Arc<CudaStream>)| {
                scope.spawn(move || Self::from_communicator(stream, &comm))
            };
            let threads: Vec<_> = comms.into_iter().zip(streams).map(start).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, _>| thread.join();
            threads.into_iter().map(|thread| join(thread).expect("connecting does not panic")).collect()
        })
    }

    /// Returns the stream.
    pub fn stream(&self) -> Arc<CudaStream> {
        Arc::clone(&self.cuda_stream)
    }

    /// Returns the context of the GPU.
    pub fn context(&self) -> &Arc<CudaContext> {
        self.cuda_stream.context()
    }

    /// Returns the number of the GPU.
    pub fn ordinal(&self) -> usize {
        self.context().ordinal()
    }

    /// Returns this rank's number, from 0.
    pub fn rank(&self) -> usize {
        self.comm.rank()
    }

    /// Returns the number of ranks.
    pub fn world_size(&self) -> usize {
        self.comm.size()
    }

    /// Returns the communicator of the host: split, shrink and others have no counterpart in
    /// cudarc.
    pub fn communicator(&self) -> &Communicator {
        &self.host_comm
    }

    /// Returns the communicator of the GPU, for operations without a counterpart in cudarc.
    pub fn device_communicator(&self) -> &DeviceCommunicator {
        &self.comm
    }

    /// Returns the first error of an operation on the GPU, as far as it is known. Never waits.
    ///
    /// # Errors
    /// That error.
    pub fn check(&self) -> Result<(), NcclError> {
        Ok(self.comm.check()?)
    }

    /// Sends `data` to `peer`. The stream waits for the receiver.
    ///
    /// # Errors
    /// [`NcclError::Unsupported`] between [`group_start`](crate::group_start) and its end. Errors
    /// of arguments, and the first error of an earlier operation.
    pub fn send<S: DeviceBuffer<T>, T: NcclType>(&self, data: &S, peer: i32) -> Result<(), NcclError> {
        require_no_group("send")?;
        Ok(self.comm.send(&self.stream, data, self.rank_of("send", peer)?)?)
    }

    /// Receives `buff` from `peer`.
    ///
    /// # Errors
    /// As [`Comm::send`].
    pub fn recv<R: DeviceBufferMut<T>, T: NcclType>(&self, buff: &mut R, peer: i32) -> Outcome {
        require_no_group("recv")?;
        success(self.comm.recv(&self.stream, buff, self.rank_of("recv", peer)?))
    }

    /// Copies the root's `sendbuff` to every rank's `recvbuff`. Other ranks may give `None`; what
    /// they give is not read.
    ///
    /// # Errors
    /// If the root gives `None`. Errors of arguments, and the first error of an earlier operation.
    pub fn broadcast<S: DeviceBuffer<T>, R: DeviceBufferMut<T>, T: NcclType>(
        &self,
        sendbuff: Option<&S>,
        recvbuff: &mut R,
        root: i32,
    ) -> Outcome {
        let root = self.rank_of("broadcast", root)?;
        let sendbuff = sendbuff.filter(|_| self.rank() == root);
        success(self.comm.broadcast_into(&self.stream, sendbuff, recvbuff, root))
    }

    /// Copies the root's `recvbuff` to every rank's.
    ///
    /// # Errors
    /// As [`Comm::all_reduce`].
    pub fn broadcast_in_place<R: DeviceBufferMut<T>, T: NcclType>(
        &self,
        recvbuff: &mut R,
        root: i32,
    ) -> Outcome {
        let root = self.rank_of("broadcast", root)?;
        success(self.comm.broadcast(&self.stream, recvbuff, root))
    }

    /// Concatenates the `sendbuff`s of all ranks, by rank, in every rank's `recvbuff`.
    ///
    /// # Errors
    /// As [`Comm::all_reduce`].
    pub fn all_gather<S: DeviceBuffer<T>, R: DeviceBufferMut<T>, T: NcclType>(
        &self,
        sendbuff: &S,
        recvbuff: &mut R,
    ) -> Outcome {
        success(self.comm.all_gather(&self.stream, sendbuff, recvbuff))
    }

    /// Reduces `sendbuff` over all ranks. Every rank gets the result in `recvbuff`.
    ///
    /// # Errors
    /// Errors of arguments, and the first error of an earlier operation.
    pub fn all_reduce<S: DeviceBuffer<T>, R: DeviceBufferMut<T>, T: NcclType>(
        &self,
        sendbuff: &S,
        recvbuff: &mut R,
        reduce_op: &ReduceOp,
    ) -> Outcome {
        let op = unisono::ReduceOp::from(reduce_op);
        success(self.comm.all_reduce_into(&self.stream, sendbuff, recvbuff, op))
    }

    /// Reduces `buff` over all ranks. Every rank gets the result in place.
    ///
    /// # Errors
    /// As [`Comm::all_reduce`].
    pub fn all_reduce_in_place<R: DeviceBufferMut<T>, T: NcclType>(
        &self,
        buff: &mut R,
        reduce_op: &ReduceOp,
    ) -> Outcome {
        success(self.comm.all_reduce(&self.stream, buff, unisono::ReduceOp::from(reduce_op)))
    }

    /// Reduces `sendbuff` over all ranks into the root's `recvbuff`. Other ranks may give `None`;
    /// what they give is not written.
    ///
    /// # Errors
    /// If the root gives `None`. Otherwise as [`Comm::all_reduce`].
    pub fn reduce<S: DeviceBuffer<T>, R: DeviceBufferMut<T>, T: NcclType>(
        &self,
        sendbuff: &S,
        recvbuff: Option<&mut R>,
        reduce_op: &ReduceOp,
        root: i32,
    ) -> Outcome {
        let (root, op) = (self.rank_of("reduce", root)?, unisono::ReduceOp::from(reduce_op));
        let recvbuff = recvbuff.filter(|_| self.rank() == root);
        success(self.comm.reduce_into(&self.stream, sendbuff, recvbuff, op, root))
    }

    /// Reduces `recvbuff` over all ranks. The root gets the result in place.
    ///
    /// # Errors
    /// As [`Comm::all_reduce`].
    pub fn reduce_in_place<R: DeviceBufferMut<T>, T: NcclType>(
        &self,
        recvbuff: &mut R,
        reduce_op: &ReduceOp,
        root: i32,
    ) -> Outcome {
        let (root, op) = (self.rank_of("reduce", root)?, unisono::ReduceOp::from(reduce_op));
        success(self.comm.reduce(&self.stream, recvbuff, op, root))
    }

    /// Reduces `sendbuff` over all ranks. Rank i gets part i of the result in `recvbuff`.
    ///
    /// # Errors
    /// As [`Comm::all_reduce`].
    pub fn reduce_scatter<S: DeviceBuffer<T>, R: DeviceBufferMut<T>, T: NcclType>(
        &self,
        sendbuff: &S,
        recvbuff: &mut R,
        reduce_op: &ReduceOp,
    ) -> Outcome {
        let op = unisono::ReduceOp::from(reduce_op);
        success(self.comm.reduce_scatter(&self.stream, sendbuff, recvbuff, op))
    }

    /// Starts a group. Its sends and receives are carried out together when it is dropped or
    /// [ended](Group::end).
    pub fn group(&self) -> Group<'_> {
        Group::new(self)
    }

    /// Returns the number of another rank.
    pub(crate) fn rank_of(&self, operation: &'static str, peer: i32) -> Result<usize, NcclError> {
        usize::try_from(peer).map_err(|_| NcclError::NegativeRank { operation, rank: self.rank(), peer })
    }
}

pub(crate) fn success(ended: unisono::Result<()>) -> Outcome {
    ended.map(|()| NcclStatus::Success).map_err(NcclError::from)
}

impl std::fmt::Debug for Comm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Comm({:?})", self.comm)
    }
}
