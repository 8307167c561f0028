//! Groups of sends and receives.

use crate::comm::{Comm, NcclType, ReduceOp};
use crate::result::{NcclError, NcclStatus};
use cudarc::driver::{CudaView, CudaViewMut};
use unisono::device::DeviceGroup;

/// Result of a call.
type Outcome = Result<NcclStatus, NcclError>;

/// A group of calls, with the views of memory that they use.
///
/// Sends and receives are carried out together at the end, so that no order among them can block.
/// Collectives are enqueued at once. All ranks must issue equal collectives in equal order.
///
/// The end is [`Group::end`], or the drop of the group, as in cudarc.
///
/// # Panics
/// The drop panics if the sends and receives fail. [`Group::end`] returns the error.
pub struct Group<'a> {
    comm: &'a Comm,
    transfers: Vec<Box<dyn Transfer + 'a>>,
}

/// A send or receive, with its memory.
trait Transfer {
    /// Adds it to a group of the library.
    fn add<'g>(&'g mut self, group: &mut DeviceGroup<'g>);
}

struct Send<'v, T>(CudaView<'v, T>, usize);

impl<T: NcclType> Transfer for Send<'_, T> {
    fn add<'g>(&'g mut self, group: &mut DeviceGroup<'g>) {
        group.send(&self.0, self.1);
    }
}

struct Recv<'v, T>(CudaViewMut<'v, T>, usize);

impl<T: NcclType> Transfer for Recv<'_, T> {
    fn add<'g>(&'g mut self, group: &mut DeviceGroup<'g>) {
        group.recv(&mut self.0, self.1);
    }
}

impl<'g> Group<'g> {
    pub(crate) fn new(comm: &'g Comm) -> Self {
        Self { comm, transfers: Vec::new() }
    }

    /// Returns the communicator.
    pub fn comm(&self) -> &'g Comm {
        self.comm
    }

    /// Adds a send of `data` to `peer`.
    ///
    /// # Errors
    /// [`NcclError::NegativeRank`]. Other errors come out of the end.
    pub fn send<'s: 'g, T: NcclType>(&mut self, data: CudaView<'s, T>, peer: i32) -> Result<(), NcclError> {
        let peer = self.comm.rank_of("send", peer)?;
        self.transfers.push(Box::new(Send(data, peer)));
        Ok(())
    }

    /// Adds a receive of `buff` from `peer`.
    ///
    /// # Errors
    /// As [`Group::send`].
    pub fn recv<'r: 'g, T: NcclType>(&mut self, buff: CudaViewMut<'r, T>, peer: i32) -> Outcome {
        let peer = self.comm.rank_of("recv", peer)?;
        self.transfers.push(Box::new(Recv(buff, peer)));
        Ok(NcclStatus::Success)
    }

    /// Enqueues [`Comm::broadcast`].
    ///
    /// # Errors
    /// As [`Comm::broadcast`].
    pub fn broadcast<'s: 'g, 'r: 'g, T: NcclType>(
        &mut self,
        sendbuff: Option<CudaView<'s, T>>,
        mut recvbuff: CudaViewMut<'r, T>,
        root: i32,
    ) -> Outcome {
        self.comm.broadcast(sendbuff.as_ref(), &mut recvbuff, root)
    }

    /// Enqueues [`Comm::broadcast_in_place`].
    ///
    /// # Errors
    /// As [`Comm::all_reduce`].
    pub fn broadcast_in_place<'r: 'g, T: NcclType>(
        &mut self,
        mut recvbuff: CudaViewMut<'r, T>,
        root: i32,
    ) -> Outcome {
        self.comm.broadcast_in_place(&mut recvbuff, root)
    }

    /// Enqueues [`Comm::all_gather`].
    ///
    /// # Errors
    /// As [`Comm::all_reduce`].
    pub fn all_gather<'s: 'g, 'r: 'g, T: NcclType>(
        &mut self,
        sendbuff: CudaView<'s, T>,
        mut recvbuff: CudaViewMut<'r, T>,
    ) -> Outcome {
        self.comm.all_gather(&sendbuff, &mut recvbuff)
    }

    /// Enqueues [`Comm::all_reduce`].
    ///
    /// # Errors
    /// As [`Comm::all_reduce`].
    pub fn all_reduce<'s: 'g, 'r: 'g, T: NcclType>(
        &mut self,
        sendbuff: CudaView<'s, T>,
        mut recvbuff: CudaViewMut<'r, T>,
        reduce_op: &ReduceOp,
    ) -> Outcome {
        self.comm.all_reduce(&sendbuff, &mut recvbuff, reduce_op)
    }

    /// Enqueues [`Comm::all_reduce_in_place`].
    ///
    /// # Errors
    /// As [`Comm::all_reduce`].
    pub fn all_reduce_in_place<'r: 'g, T: NcclType>(
        &mut self,
        mut buff: CudaViewMut<'r, T>,
        reduce_op: &ReduceOp,
    ) -> Outcome {
        self.comm.all_reduce_in_place(&mut buff, reduce_op)
    }

    /// Enqueues [`Comm::reduce`].
    ///
    /// # Errors
    /// As [`Comm::reduce`].
    pub fn reduce<'s: 'g, 'r: 'g, T: NcclType>(
        &mut self,
        sendbuff: CudaView<'s, T>,
        mut recvbuff: Option<CudaViewMut<'r, T>>,
        reduce_op: &ReduceOp,
        root: i32,
    ) -> Outcome {
        self.comm.reduce(&sendbuff, recvbuff.as_mut(), reduce_op, root)
    }

    /// Enqueues [`Comm::reduce_in_place`].
    ///
    /// # Errors
    /// As [`Comm::all_reduce`].
    pub fn reduce_in_place<'r: 'g, T: NcclType>(
        &mut self,
        mut recvbuff: CudaViewMut<'r, T>,
        reduce_op: &ReduceOp,
        root: i32,
    ) -> Outcome {
        self.comm.reduce_in_place(&mut recvbuff, reduce_op, root)
    }

    /// Enqueues [`Comm::reduce_scatter`].
    ///
    /// # Errors
    /// As [`Comm::all_reduce`].
    pub fn reduce_scatter<'s: 'g, 'r: 'g, T: NcclType>(
        &mut self,
        sendbuff: CudaView<'s, T>,
        mut recvbuff: CudaViewMut<'r, T>,
        reduce_op: &ReduceOp,
    ) -> Outcome {
        self.comm.reduce_scatter(&sendbuff, &mut recvbuff, reduce_op)
    }

    /// Carries out all sends and receives.
    ///
    /// # Errors
    /// Errors of their arguments, and the first error of an earlier operation.
    pub fn end(mut self) -> Result<(), NcclError> {
        self.carry_out()
    }

    fn carry_out(&mut self) -> Result<(), NcclError> {
        let mut transfers = std::mem::take(&mut self.transfers);
        let Comm { comm, stream, .. } = self.comm;
        Ok(comm.group(stream, |group| transfers.iter_mut().for_each(|transfer| transfer.add(group)))?)
    }
}

impl Drop for Group<'_> {
    fn drop(&mut self) {
        let ended = self.carry_out();
        if !std::thread::panicking() {
            ended.unwrap_or_else(|error| panic!("{error}"));
        }
    }
}

impl std::fmt::Debug for Group<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Group({} sends and receives of rank {})", self.transfers.len(), self.comm.rank())
    }
}
