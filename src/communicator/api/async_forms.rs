//! Forms of the collectives that run in the background on owned buffers.
//!
//! Each form takes ownership of its buffers and returns a [`Work`] handle, which returns the
//! result. Operations of one communicator run one after the other, in the order of the calls. The
//! handle returns the same errors as the blocking form.

use crate::communicator::{Communicator, Work};
use crate::reduce_op::ReduceOp;
use crate::schedule::Rank;
use unisono_reducers::Element;

impl Communicator {
    /// Starts [`Communicator::all_reduce`]. The handle returns the reduced buffer.
    ///
    /// ```
    /// # use unisono::{Communicator, Sum};
    /// # let comm = Communicator::local(1)?.remove(0);
    /// let work = comm.all_reduce_async(vec![1.0f32; 1000], Sum);
    /// // ... compute something else ...
    /// assert_eq!(work.wait()?, vec![1.0; 1000]);
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn all_reduce_async<T: Element>(&self, mut buffer: Vec<T>, op: ReduceOp) -> Work<Vec<T>> {
        self.spawn(move |comm| comm.all_reduce(&mut buffer, op).map(|()| buffer))
    }

    /// Starts [`Communicator::broadcast`]. The handle returns the buffer with the root's elements.
    ///
    /// ```
    /// # let comm = unisono::Communicator::local(1)?.remove(0);
    /// assert_eq!(comm.broadcast_async(vec![5u8; 3], 0).wait()?, [5, 5, 5]);
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn broadcast_async<T: Element>(&self, mut buffer: Vec<T>, root: Rank) -> Work<Vec<T>> {
        self.spawn(move |comm| comm.broadcast(&mut buffer, root).map(|()| buffer))
    }

    /// Starts [`Communicator::reduce`]. The handle returns the buffer, which holds the result at
    /// the root.
    ///
    /// ```
    /// # let comm = unisono::Communicator::local(1)?.remove(0);
    /// assert_eq!(comm.reduce_async(vec![5u8; 3], unisono::Max, 0).wait()?, [5, 5, 5]);
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn reduce_async<T: Element>(&self, mut buffer: Vec<T>, op: ReduceOp, root: Rank) -> Work<Vec<T>> {
        self.spawn(move |comm| comm.reduce(&mut buffer, op, root).map(|()| buffer))
    }

    /// Starts [`Communicator::all_gather`]. The handle returns the inputs of all ranks, by rank.
    ///
    /// ```
    /// # let comm = unisono::Communicator::local(1)?.remove(0);
    /// assert_eq!(comm.all_gather_async(vec![1i64, 2]).wait()?, [1, 2]);
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn all_gather_async<T: Element>(&self, input: Vec<T>) -> Work<Vec<T>> {
        self.spawn(move |comm| {
            let mut output = comm.zeros(input.len().saturating_mul(comm.size()))?;
            comm.all_gather(&input, &mut output).map(|()| output)
        })
    }

    /// Starts [`Communicator::all_gather_v`]. The handle returns the inputs of all ranks, by rank.
    ///
    /// ```
    /// # let comm = unisono::Communicator::local(1)?.remove(0);
    /// assert_eq!(comm.all_gather_v_async(vec![1i64, 2], vec![2]).wait()?, [1, 2]);
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn all_gather_v_async<T: Element>(&self, input: Vec<T>, counts: Vec<usize>) -> Work<Vec<T>> {
        self.spawn(move |comm| {
            let total = comm.arg_check(crate::OpKind::AllGatherV).total_count(&counts)?;
            let mut output = comm.zeros(total)?;
            comm.all_gather_v(&input, &mut output, &counts).map(|()| output)
        })
    }

    /// Starts [`Communicator::reduce_scatter`]. The handle returns this rank's share of the result.
    ///
    /// ```
    /// # let comm = unisono::Communicator::local(1)?.remove(0);
    /// assert_eq!(comm.reduce_scatter_async(vec![1i64, 2], unisono::Sum).wait()?, [1, 2]);
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn reduce_scatter_async<T: Element>(&self, input: Vec<T>, op: ReduceOp) -> Work<Vec<T>> {
        self.spawn(move |comm| {
            let mut output = comm.zeros(input.len() / comm.size())?;
            comm.reduce_scatter(&input, &mut output, op).map(|()| output)
        })
    }

    /// Starts [`Communicator::all_to_all`]. The handle returns this rank's shares, by sender.
    ///
    /// ```
    /// # let comm = unisono::Communicator::local(1)?.remove(0);
    /// assert_eq!(comm.all_to_all_async(vec![1i64, 2]).wait()?, [1, 2]);
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn all_to_all_async<T: Element>(&self, input: Vec<T>) -> Work<Vec<T>> {
        self.spawn(move |comm| {
            let mut output = comm.zeros(input.len())?;
            comm.all_to_all(&input, &mut output).map(|()| output)
        })
    }

    /// Starts [`Communicator::all_to_all_v`]. The handle returns the received shares, by sender.
    ///
    /// ```
    /// # let comm = unisono::Communicator::local(1)?.remove(0);
    /// assert_eq!(comm.all_to_all_v_async(vec![1i64, 2], vec![2], vec![2]).wait()?, [1, 2]);
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn all_to_all_v_async<T: Element>(
        &self,
        input: Vec<T>,
        send_counts: Vec<usize>,
        recv_counts: Vec<usize>,
    ) -> Work<Vec<T>> {
        self.spawn(move |comm| {
            let total = comm.arg_check(crate::OpKind::AllToAllV).total_count(&recv_counts)?;
            let mut output = comm.zeros(total)?;
            comm.all_to_all_v(&input, &send_counts, &mut output, &recv_counts).map(|()| output)
        })
    }

    /// Starts [`Communicator::gather`]. The handle returns the inputs of all ranks at the root, and
    /// `None` at the other ranks.
    ///
    /// ```
    /// # let comm = unisono::Communicator::local(1)?.remove(0);
    /// assert_eq!(comm.gather_async(vec![1i64, 2], 0).wait()?, Some(vec![1, 2]));
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn gather_async<T: Element>(&self, input: Vec<T>, root: Rank) -> Work<Option<Vec<T>>> {
        self.spawn(move |comm| {
            let at_root = comm.rank() == root;
            let mut output =
                at_root.then(|| comm.zeros(input.len().saturating_mul(comm.size()))).transpose()?;
            comm.gather(&input, output.as_deref_mut(), root).map(|()| output)
        })
    }

    /// Starts [`Communicator::scatter`] of shares of `count` elements. Only the root gives an
    /// input. The handle returns this rank's share.
    ///
    /// ```
    /// # let comm = unisono::Communicator::local(1)?.remove(0);
    /// assert_eq!(comm.scatter_async(Some(vec![1i64, 2]), 2, 0).wait()?, [1, 2]);
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn scatter_async<T: Element>(&self, input: Option<Vec<T>>, count: usize, root: Rank) -> Work<Vec<T>> {
        self.spawn(move |comm| {
            let mut output = comm.zeros(count)?;
            comm.scatter(input.as_deref(), &mut output, root).map(|()| output)
        })
    }

    /// Starts [`Communicator::send`]. The handle returns the buffer.
    ///
    /// Operations run in order, so two ranks that both receive before they send wait for each other
    /// until the timeout. [`Communicator::group`] inside [`Communicator::spawn`] runs both
    /// operations together.
    pub fn send_async<T: Element>(&self, buffer: Vec<T>, peer: Rank) -> Work<Vec<T>> {
        self.spawn(move |comm| comm.send(&buffer, peer).map(|()| buffer))
    }

    /// Starts [`Communicator::recv`] into a buffer, which the handle returns.
    ///
    /// ```
    /// # let ranks = unisono::Communicator::local(2)?;
    /// let sent = ranks[0].send_async(vec![7u8], 1);
    /// let received = ranks[1].recv_async(vec![0u8], 0);
    /// assert_eq!((sent.wait()?, received.wait()?), (vec![7], vec![7]));
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn recv_async<T: Element>(&self, mut buffer: Vec<T>, peer: Rank) -> Work<Vec<T>> {
        self.spawn(move |comm| comm.recv(&mut buffer, peer).map(|()| buffer))
    }

    /// Starts [`Communicator::barrier`]. The handle returns when every rank has started it.
    ///
    /// ```
    /// # let comm = unisono::Communicator::local(1)?.remove(0);
    /// comm.barrier_async().wait()?;
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn barrier_async(&self) -> Work<()> {
        self.spawn(Communicator::barrier)
    }
}
