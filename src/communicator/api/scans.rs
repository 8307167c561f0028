//! The blocking prefix reductions.

use crate::communicator::Communicator;
use crate::communicator::calls::validate::ArgCheck;
use crate::engine::{Buffers, Job};
use crate::error::Result;
use crate::reduce_op::ReduceOp;
use crate::schedule::Collective;
use unisono_reducers::{Element, as_bytes, as_bytes_mut};

impl Communicator {
    /// Reduces `buffer` over this rank and all ranks below it, in place.
    ///
    /// `buffer` has the same number of elements on all ranks.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidUsage`](crate::ErrorKind::InvalidUsage) for an average, because scans do
    /// not support averages. Other errors are those of [`Communicator::all_reduce`]. After an
    /// error, `buffer` is [unspecified](crate::Error#buffers-after-an-error).
    ///
    /// ```
    /// # use unisono::{Communicator, Sum};
    /// # let ranks = Communicator::local(3)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// let mut values = [1, comm.rank() as i32];
    /// comm.scan(&mut values, Sum).unwrap();
    /// assert_eq!(values, [[1, 0], [2, 1], [3, 3]][comm.rank()]);
    /// # }); });
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn scan<T: Element>(&self, buffer: &mut [T], reduction: ReduceOp) -> Result<()> {
        self.prefix_in_place(Collective::Scan, buffer, reduction)
    }

    /// Reduces `input` over this rank and all ranks below it into `output`, which is as long as
    /// `input`.
    ///
    /// # Errors
    /// As [`Communicator::scan`]. After an error, `output` is
    /// [unspecified](crate::Error#buffers-after-an-error).
    ///
    /// ```
    /// # let comm = unisono::Communicator::local(1)?.remove(0);
    /// let mut output = [0; 2];
    /// comm.scan_into(&[3u8, 4], &mut output, unisono::Max)?;
    /// assert_eq!(output, [3, 4]);
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn scan_into<T: Element>(&self, input: &[T], output: &mut [T], reduction: ReduceOp) -> Result<()> {
        self.arg_check(Collective::Scan).require_length("output", output.len(), input.len())?;
        self.prefix_into(Collective::Scan, input, output, reduction)
    }

    /// Reduces `buffer` over all ranks below this one, in place. The buffer of rank 0 does not
    /// change, because no rank is below it.
    ///
    /// `buffer` has the same number of elements on all ranks.
    ///
    /// # Errors
    /// As [`Communicator::scan`]. After an error, `buffer` is
    /// [unspecified](crate::Error#buffers-after-an-error).
    ///
    /// ```
    /// # use unisono::{Communicator, Sum};
    /// # let ranks = Communicator::local(3)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// // Where the items of each rank begin, if every rank has rank + 1 items.
    /// let mut offset = [comm.rank() as u64 + 1];
    /// comm.exscan(&mut offset, Sum).unwrap();
    /// assert!(comm.rank() == 0 || offset == [[0], [1], [3]][comm.rank()]);
    /// # }); });
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn exscan<T: Element>(&self, buffer: &mut [T], reduction: ReduceOp) -> Result<()> {
        self.prefix_in_place(Collective::ExScan, buffer, reduction)
    }

    /// Reduces `input` over all ranks below this one into `output`. The output of rank 0 does not
    /// change, and may be empty.
    ///
    /// # Errors
    /// As [`Communicator::scan`]. After an error, `output` is
    /// [unspecified](crate::Error#buffers-after-an-error).
    ///
    /// ```
    /// # use unisono::{Communicator, Prod};
    /// # let ranks = Communicator::local(3)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// let mut output = [1];
    /// comm.exscan_into(&[5u32], &mut output, Prod).unwrap();
    /// assert_eq!(output, [[1], [5], [25]][comm.rank()]);
    /// # }); });
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn exscan_into<T: Element>(&self, input: &[T], output: &mut [T], reduction: ReduceOp) -> Result<()> {
        let args = self.arg_check(Collective::ExScan);
        args.require_length_if(self.rank() > 0, "output", output.len(), input.len())?;
        self.prefix_into(Collective::ExScan, input, output, reduction)
    }

    fn prefix_in_place<T: Element>(
        &self,
        collective: Collective,
        buffer: &mut [T],
        reduction: ReduceOp,
    ) -> Result<()> {
        self.arg_check(collective).require_prefix_op(reduction)?;
        let count = buffer.len();
        let buffers = Buffers::in_place(as_bytes_mut(buffer), 0, 0);
        self.run(Job::even::<T>(collective, Some(reduction), 0, count, buffers))
    }

    fn prefix_into<T: Element>(
        &self,
        collective: Collective,
        input: &[T],
        output: &mut [T],
        reduction: ReduceOp,
    ) -> Result<()> {
        self.arg_check(collective).require_prefix_op(reduction)?;
        let buffers = Buffers::separate(as_bytes(input), as_bytes_mut(output));
        self.run(Job::even::<T>(collective, Some(reduction), 0, input.len(), buffers))
    }
}

impl ArgCheck<'_> {
    /// Refuses a reduction that a scan cannot apply.
    pub(in crate::communicator) fn require_prefix_op(self, reduction: ReduceOp) -> Result<()> {
        match reduction {
            ReduceOp::Avg => Err(self.invalid(
                "a scan has no average, because rank i reduces the inputs of other ranks than rank i + 1; scan the sum \
                 and divide it"
                    .to_owned(),
            )),
            _ => Ok(()),
        }
    }
}
