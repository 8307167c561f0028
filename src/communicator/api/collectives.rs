//! The blocking collectives.
//!
//! A buffer of several shares holds them one after the other, by rank, as in NCCL and MPI. A call
//! with a buffer of the wrong length has no effect, and returns
//! [`ErrorKind::InvalidUsage`](crate::ErrorKind::InvalidUsage).

use crate::communicator::Communicator;
use crate::engine::{Buffers, Engine, Job};
use crate::error::Result;
use crate::op_desc::OpKind;
use crate::reduce_op::ReduceOp;
use crate::schedule::Collective;
use std::time::Duration;
use unisono_reducers::{Element, as_bytes, as_bytes_mut};

impl Communicator {
    /// Reduces `buffer` over all ranks. Every rank gets the result in place.
    ///
    /// `buffer` has the same number of elements on all ranks.
    ///
    /// # Errors
    /// If arguments are refused, the communicator stays as it is. All other errors poison it, see
    /// [`Error::is_poisoning`](crate::Error::is_poisoning). An error names the rank, the operation
    /// and its sequence number. After an error, `buffer` is
    /// [unspecified](crate::Error#buffers-after-an-error).
    ///
    /// ```
    /// # use unisono::{Communicator, Sum};
    /// # let ranks = Communicator::local(2)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// let mut values = [comm.rank() as f32, 1.0];
    /// comm.all_reduce(&mut values, Sum).unwrap();
    /// assert_eq!(values, [1.0, 2.0]);
    /// # }); });
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn all_reduce<T: Element>(&self, buffer: &mut [T], reduction: ReduceOp) -> Result<()> {
        let count = buffer.len();
        let buffers = Buffers::in_place(as_bytes_mut(buffer), 0, 0);
        self.run(Job::even::<T>(Collective::AllReduce, Some(reduction), 0, count, buffers))
    }

    /// Reduces `input` over all ranks. Every rank gets the result in `output`, which is as long as
    /// `input`.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]. After an error, `output` is
    /// [unspecified](crate::Error#buffers-after-an-error).
    ///
    /// ```
    /// # use unisono::{Communicator, Sum};
    /// # let ranks = Communicator::local(2)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// let mut sum = [0; 2];
    /// comm.all_reduce_into(&[comm.rank() as i32, 5], &mut sum, Sum).unwrap();
    /// assert_eq!(sum, [1, 10]);
    /// # }); });
    /// # Ok::<(), unisono::Error>(())
    /// ```
    ///
    /// The buffers cannot overlap:
    ///
    /// ```compile_fail,E0502
    /// # use unisono::{Communicator, Sum};
    /// # let comm = Communicator::local(1).unwrap().remove(0);
    /// let mut gradients = vec![1.0f32; 1000];
    /// comm.all_reduce_into(&gradients, &mut gradients, Sum);
    /// ```
    pub fn all_reduce_into<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        reduction: ReduceOp,
    ) -> Result<()> {
        let count = output.len();
        self.arg_check(Collective::AllReduce).require_length("input", input.len(), count)?;
        let buffers = Buffers::separate(as_bytes(input), as_bytes_mut(output));
        self.run(Job::even::<T>(Collective::AllReduce, Some(reduction), 0, count, buffers))
    }

    /// Reduces one value over all ranks, and returns the result on every rank.
    ///
    /// Other ranks may call [`Communicator::all_reduce`] with one element instead.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    ///
    /// ```
    /// use unisono::Max;
    ///
    /// let largest = unisono::local(3, |comm| comm.all_reduce_value(comm.rank() as f64, Max))?;
    /// assert_eq!(largest, [2.0; 3]);
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn all_reduce_value<T: Element>(&self, value: T, reduction: ReduceOp) -> Result<T> {
        let mut reduced = [value];
        self.all_reduce(&mut reduced, reduction)?;
        let [reduced] = reduced;
        Ok(reduced)
    }

    /// Concatenates the inputs of all ranks, by rank, into every rank's `output`.
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
    /// let mut output = [0; 4];
    /// comm.all_gather(&[comm.rank(), 7].map(|value| value as u32), &mut output).unwrap();
    /// assert_eq!(output, [0, 7, 1, 7]);
    /// # }); });
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn all_gather<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        let count = input.len();
        self.arg_check(Collective::AllGather).require_length("output", output.len(), count * self.size())?;
        let buffers = Buffers::separate(as_bytes(input), as_bytes_mut(output));
        self.run(Job::even::<T>(Collective::AllGather, None, 0, count, buffers))
    }

    /// Gathers what ranks must know of each other to split. Errors name the split, because that is
    /// the call that the user made.
    pub(in crate::communicator) fn all_gather_for_split<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
    ) -> Result<()> {
        let count = input.len();
        let buffers = Buffers::separate(as_bytes(input), as_bytes_mut(output));
        let job = Job::even::<T>(Collective::AllGather, None, 0, count, buffers);
        self.run(Job { kind: OpKind::Split, ..job })
    }

    /// Concatenates one share of every rank in `buffer`, which holds this rank's share at its
    /// place.
    ///
    /// `buffer` has n × [`size`](Communicator::size) elements. Share i begins at element i × n.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]. After an error, `buffer` is
    /// [unspecified](crate::Error#buffers-after-an-error).
    ///
    /// ```
    /// # use unisono::Communicator;
    /// # let ranks = Communicator::local(2)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// let mut buffer = [0u8; 2];
    /// buffer[comm.rank()] = 5 + comm.rank() as u8;
    /// comm.all_gather_in_place(&mut buffer).unwrap();
    /// assert_eq!(buffer, [5, 6]);
    /// # }); });
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn all_gather_in_place<T: Element>(&self, buffer: &mut [T]) -> Result<()> {
        let count = self.arg_check(Collective::AllGather).share_count(buffer.len())?;
        let buffers = Buffers::in_place(as_bytes_mut(buffer), self.rank() * count * size_of::<T>(), 0);
        self.run(Job::even::<T>(Collective::AllGather, None, 0, count, buffers))
    }

    /// Reduces `input` over all ranks. Rank i gets share i of the result in `output`.
    ///
    /// `output` has n elements on every rank, `input` has n × [`size`](Communicator::size).
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]. After an error, `output` is
    /// [unspecified](crate::Error#buffers-after-an-error).
    ///
    /// ```
    /// # use unisono::{Communicator, Sum};
    /// # let ranks = Communicator::local(2)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// let mut share = [0];
    /// comm.reduce_scatter(&[1, 20], &mut share, Sum).unwrap();
    /// assert_eq!(share, [[2], [40]][comm.rank()]);
    /// # }); });
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn reduce_scatter<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        reduction: ReduceOp,
    ) -> Result<()> {
        let count = output.len();
        self.arg_check(Collective::ReduceScatter).require_length(
            "input",
            input.len(),
            count * self.size(),
        )?;
        let buffers = Buffers::separate(as_bytes(input), as_bytes_mut(output));
        self.run(Job::even::<T>(Collective::ReduceScatter, Some(reduction), 0, count, buffers))
    }

    /// Reduces `buffer` over all ranks. Share i of the result replaces share i of rank i's
    /// `buffer`.
    ///
    /// The other shares stay as they were. `buffer` has n × [`size`](Communicator::size) elements.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]. After an error, `buffer` is
    /// [unspecified](crate::Error#buffers-after-an-error).
    ///
    /// ```
    /// # use unisono::{Communicator, Sum};
    /// # let ranks = Communicator::local(2)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// let mut buffer = [1, 20];
    /// comm.reduce_scatter_in_place(&mut buffer, Sum).unwrap();
    /// assert_eq!(buffer, [[2, 20], [1, 40]][comm.rank()]);
    /// # }); });
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn reduce_scatter_in_place<T: Element>(&self, buffer: &mut [T], reduction: ReduceOp) -> Result<()> {
        let count = self.arg_check(Collective::ReduceScatter).share_count(buffer.len())?;
        let buffers = Buffers::in_place(as_bytes_mut(buffer), 0, self.rank() * count * size_of::<T>());
        self.run(Job::even::<T>(Collective::ReduceScatter, Some(reduction), 0, count, buffers))
    }

    /// Copies share i of every rank's `input` to rank i's `output`, where the shares are ordered by
    /// sender.
    ///
    /// `input` and `output` have n × [`size`](Communicator::size) elements.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]. After an error, `output` is
    /// [unspecified](crate::Error#buffers-after-an-error).
    ///
    /// ```
    /// # use unisono::Communicator;
    /// # let ranks = Communicator::local(2)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// let (first, mut output) = (10 * comm.rank() as u32, [0; 2]);
    /// comm.all_to_all(&[first, first + 1], &mut output).unwrap();
    /// assert_eq!(output, [[0, 10], [1, 11]][comm.rank()]);
    /// # }); });
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn all_to_all<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        let args = self.arg_check(Collective::AllToAll);
        let count = args.share_count(input.len())?;
        args.require_length("output", output.len(), input.len())?;
        let buffers = Buffers::separate(as_bytes(input), as_bytes_mut(output));
        self.run(Job::even::<T>(Collective::AllToAll, None, 0, count, buffers))
    }

    /// Copies share i of every rank's `buffer` to rank i's `buffer`, where the shares are ordered
    /// by sender.
    ///
    /// `buffer` has n × [`size`](Communicator::size) elements. Its contents are copied to a
    /// temporary buffer first.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]. After an error, `buffer` is
    /// [unspecified](crate::Error#buffers-after-an-error).
    ///
    /// ```
    /// # use unisono::Communicator;
    /// # let ranks = Communicator::local(2)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// let mut buffer = [10 * comm.rank() as u32, 10 * comm.rank() as u32 + 1];
    /// comm.all_to_all_in_place(&mut buffer).unwrap();
    /// assert_eq!(buffer, [[0, 10], [1, 11]][comm.rank()]);
    /// # }); });
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn all_to_all_in_place<T: Element>(&self, buffer: &mut [T]) -> Result<()> {
        let count = self.arg_check(Collective::AllToAll).share_count(buffer.len())?;
        self.with_input_aside(as_bytes_mut(buffer), |engine, buffers| {
            engine.collective(&mut Job::even::<T>(Collective::AllToAll, None, 0, count, buffers))
        })
    }

    /// Runs `operation` with a copy of `buffer` as the input and `buffer` as the output.
    pub(in crate::communicator) fn with_input_aside(
        &self,
        buffer: &mut [u8],
        operation: impl FnOnce(&mut Engine, Buffers<'_>) -> Result<()>,
    ) -> Result<()> {
        self.with_engine(|engine| {
            // The memory is taken out of the engine, because the operation borrows all of the
            // engine.
            let mut aside = engine.take_temp();
            aside.clear();
            aside.extend_from_slice(buffer);
            let ended = operation(engine, Buffers::separate(&aside, buffer));
            engine.return_temp(aside);
            ended
        })
    }

    /// Returns when every rank has called this method.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    ///
    /// ```
    /// # let comm = unisono::Communicator::local(1)?.remove(0);
    /// comm.barrier()?;
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn barrier(&self) -> Result<()> {
        let buffers = Buffers::separate(&[], &mut []);
        self.run(Job::even::<u8>(Collective::Barrier, None, 0, 0, buffers))
    }

    /// Returns when every rank has called this method. After `timeout`, fails with an error that
    /// lists all ranks that have not.
    ///
    /// [`Communicator::barrier`] is faster, because here each pair of ranks exchanges messages.
    ///
    /// # Errors
    /// [`ErrorKind::BarrierTimeout`](crate::ErrorKind::BarrierTimeout) lists the missing ranks, on
    /// every rank that called this method, also if it called late. The error poisons the
    /// communicator, because messages to the missing ranks are under way. [`Communicator::shrink`]
    /// makes a communicator without them. Other errors are those of [`Communicator::all_reduce`].
    ///
    /// ```
    /// # let comm = unisono::Communicator::local(1)?.remove(0);
    /// comm.barrier_timeout(std::time::Duration::from_secs(30))?;
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn barrier_timeout(&self, timeout: Duration) -> Result<()> {
        self.with_engine(|engine| engine.barrier_within(timeout))
    }
}
