//! The blocking collectives that have a root.

use crate::communicator::Communicator;
use crate::engine::Buffers;
use crate::engine::Job;
use crate::error::Result;
use crate::reduce_op::ReduceOp;
use crate::schedule::{Collective, Rank};
use unisono_reducers::{Element, as_bytes, as_bytes_mut};

impl Communicator {
    /// Copies the root's `buffer` into every rank's `buffer`, which is equally long.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]. After an error, `buffer` is
    /// [unspecified](crate::Error#buffers-after-an-error).
    ///
    /// ```
    /// # use unisono::Communicator;
    /// # let ranks = Communicator::local(2)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// let mut buffer = [comm.rank() as u8; 3];
    /// comm.broadcast(&mut buffer, 1).unwrap();
    /// assert_eq!(buffer, [1, 1, 1]);
    /// # }); });
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn broadcast<T: Element>(&self, buffer: &mut [T], root: Rank) -> Result<()> {
        self.arg_check(Collective::Broadcast).require_rank("root", root)?;
        let count = buffer.len();
        let buffers = Buffers::in_place(as_bytes_mut(buffer), 0, 0);
        self.run(Job::even::<T>(Collective::Broadcast, None, root, count, buffers))
    }

    /// Copies the root's `input` into every rank's `output`. Only the root gives an input.
    ///
    /// `input` and all outputs are equally long.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]. After an error, `output` is
    /// [unspecified](crate::Error#buffers-after-an-error).
    ///
    /// ```
    /// # use unisono::Communicator;
    /// # let ranks = Communicator::local(2)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// let (input, mut output) = ([3.5f64; 2], [0.0; 2]);
    /// let input = (comm.rank() == 0).then_some(&input[..]);
    /// comm.broadcast_into(input, &mut output, 0).unwrap();
    /// assert_eq!(output, [3.5; 2]);
    /// # }); });
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn broadcast_into<T: Element>(
        &self,
        input: Option<&[T]>,
        output: &mut [T],
        root: Rank,
    ) -> Result<()> {
        let args = self.arg_check(Collective::Broadcast);
        args.require_rank("root", root)?;
        let count = output.len();
        let input = args.root_input("input", root, input)?;
        args.require_length_if(self.rank() == root, "input", input.len(), count)?;
        let buffers = Buffers::separate(as_bytes(input), as_bytes_mut(output));
        self.run(Job::even::<T>(Collective::Broadcast, None, root, count, buffers))
    }

    /// Reduces `buffer` over all ranks. The root gets the result in place. Other buffers do not
    /// change.
    ///
    /// `buffer` has the same number of elements on all ranks.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]. After an error, `buffer` is
    /// [unspecified](crate::Error#buffers-after-an-error).
    ///
    /// ```
    /// # use unisono::{Communicator, Sum};
    /// # let ranks = Communicator::local(2)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// let mut buffer = [comm.rank() as i64 + 1];
    /// comm.reduce(&mut buffer, Sum, 0).unwrap();
    /// assert_eq!(buffer, [[3], [2]][comm.rank()]);
    /// # }); });
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn reduce<T: Element>(&self, buffer: &mut [T], reduction: ReduceOp, root: Rank) -> Result<()> {
        self.arg_check(Collective::Reduce).require_rank("root", root)?;
        let count = buffer.len();
        let buffers = Buffers::in_place(as_bytes_mut(buffer), 0, 0);
        self.run(Job::even::<T>(Collective::Reduce, Some(reduction), root, count, buffers))
    }

    /// Reduces `input` over all ranks into `output`, which is as long as `input`. Only the root
    /// gives an output.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]. After an error, `output` is
    /// [unspecified](crate::Error#buffers-after-an-error).
    ///
    /// ```
    /// # use unisono::{Communicator, Sum};
    /// # let ranks = Communicator::local(2)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// let mut sum = [0];
    /// let output = (comm.rank() == 1).then_some(&mut sum[..]);
    /// comm.reduce_into(&[4], output, Sum, 1).unwrap();
    /// assert_eq!(sum, [[0], [8]][comm.rank()]);
    /// # }); });
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn reduce_into<T: Element>(
        &self,
        input: &[T],
        output: Option<&mut [T]>,
        reduction: ReduceOp,
        root: Rank,
    ) -> Result<()> {
        let args = self.arg_check(Collective::Reduce);
        args.require_rank("root", root)?;
        let output = args.root_output("output", root, output)?;
        args.require_length_if(self.rank() == root, "output", output.len(), input.len())?;
        let count = input.len();
        let buffers = Buffers::separate(as_bytes(input), as_bytes_mut(output));
        self.run(Job::even::<T>(Collective::Reduce, Some(reduction), root, count, buffers))
    }

    /// Concatenates the inputs of all ranks, by rank, into `output`, which only the root gives.
    ///
    /// `input` has n elements on every rank, `output` has n × [`size`](Communicator::size).
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]. After an error, `output` is
    /// [unspecified](crate::Error#buffers-after-an-error).
    ///
    /// ```
    /// # use unisono::Communicator;
    /// # let ranks = Communicator::local(2)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// let mut all = [0; 2];
    /// let output = (comm.rank() == 0).then_some(&mut all[..]);
    /// comm.gather(&[comm.rank() as u32 + 1], output, 0).unwrap();
    /// assert_eq!(all, [[1, 2], [0, 0]][comm.rank()]);
    /// # }); });
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn gather<T: Element>(&self, input: &[T], output: Option<&mut [T]>, root: Rank) -> Result<()> {
        let args = self.arg_check(Collective::Gather);
        args.require_rank("root", root)?;
        let count = input.len();
        let output = args.root_output("output", root, output)?;
        args.require_length_if(self.rank() == root, "output", output.len(), count * self.size())?;
        let buffers = Buffers::separate(as_bytes(input), as_bytes_mut(output));
        self.run(Job::even::<T>(Collective::Gather, None, root, count, buffers))
    }

    /// Concatenates the shares of all ranks in the root's `buffer`, which already holds the root's
    /// share at its place.
    ///
    /// The root gives n × [`size`](Communicator::size) elements, and each of the other ranks gives
    /// its n elements.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]. After an error, `buffer` is
    /// [unspecified](crate::Error#buffers-after-an-error).
    ///
    /// ```
    /// # use unisono::Communicator;
    /// # let ranks = Communicator::local(2)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// let mut buffer = vec![comm.rank() as u32 + 1; if comm.rank() == 0 { 2 } else { 1 }];
    /// comm.gather_in_place(&mut buffer, 0).unwrap();
    /// assert_eq!(buffer[..], [&[1, 2][..], &[2]][comm.rank()][..]);
    /// # }); });
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn gather_in_place<T: Element>(&self, buffer: &mut [T], root: Rank) -> Result<()> {
        let args = self.arg_check(Collective::Gather);
        args.require_rank("root", root)?;
        let at_root = self.rank() == root;
        let count = if at_root { args.share_count(buffer.len())? } else { buffer.len() };
        let offset = if at_root { root * count * size_of::<T>() } else { 0 };
        let buffers = Buffers::in_place(as_bytes_mut(buffer), offset, 0);
        self.run(Job::even::<T>(Collective::Gather, None, root, count, buffers))
    }

    /// Copies share i of the root's `input` to rank i's `output`. Only the root gives an input.
    ///
    /// `output` has n elements on every rank, `input` has n × [`size`](Communicator::size).
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]. After an error, `output` is
    /// [unspecified](crate::Error#buffers-after-an-error).
    ///
    /// ```
    /// # use unisono::Communicator;
    /// # let ranks = Communicator::local(2)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// let (all, mut share) = ([7u8, 8], [0]);
    /// comm.scatter((comm.rank() == 0).then_some(&all[..]), &mut share, 0).unwrap();
    /// assert_eq!(share, [[7], [8]][comm.rank()]);
    /// # }); });
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn scatter<T: Element>(&self, input: Option<&[T]>, output: &mut [T], root: Rank) -> Result<()> {
        let args = self.arg_check(Collective::Scatter);
        args.require_rank("root", root)?;
        let count = output.len();
        let input = args.root_input("input", root, input)?;
        args.require_length_if(self.rank() == root, "input", input.len(), count * self.size())?;
        let buffers = Buffers::separate(as_bytes(input), as_bytes_mut(output));
        self.run(Job::even::<T>(Collective::Scatter, None, root, count, buffers))
    }

    /// Copies share i of the root's `buffer` to rank i's `buffer`. The root's share does not move.
    ///
    /// The root gives n × [`size`](Communicator::size) elements, and each of the other ranks gives
    /// room for n elements.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]. After an error, `buffer` is
    /// [unspecified](crate::Error#buffers-after-an-error).
    ///
    /// ```
    /// # use unisono::Communicator;
    /// # let ranks = Communicator::local(2)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// let mut buffer = if comm.rank() == 0 { vec![7u8, 8] } else { vec![0] };
    /// comm.scatter_in_place(&mut buffer, 0).unwrap();
    /// assert_eq!(buffer[..], [&[7, 8][..], &[8]][comm.rank()][..]);
    /// # }); });
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn scatter_in_place<T: Element>(&self, buffer: &mut [T], root: Rank) -> Result<()> {
        let args = self.arg_check(Collective::Scatter);
        args.require_rank("root", root)?;
        let at_root = self.rank() == root;
        let count = if at_root { args.share_count(buffer.len())? } else { buffer.len() };
        let offset = if at_root { root * count * size_of::<T>() } else { 0 };
        let buffers = Buffers::in_place(as_bytes_mut(buffer), 0, offset);
        self.run(Job::even::<T>(Collective::Scatter, None, root, count, buffers))
    }
}
