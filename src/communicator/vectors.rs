//! The blocking collectives of vectors of which each rank knows the length of its own alone.
//!
//! They return vectors of the right lengths, and need one exchange more than the forms with counts
//! in `uneven.rs`.

use super::Communicator;
use crate::error::Result;
use crate::op_desc::OpKind;
use crate::schedule::Rank;
use unisono_reducers::Element;

impl Communicator {
    /// Returns the inputs of all ranks, by rank, on every rank.
    ///
    /// The lengths may differ, and ranks need not know those of the others: the call exchanges them
    /// first. [`Communicator::all_gather_v`] is faster where all ranks know all lengths.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    ///
    /// ```
    /// let gathered = unisono::local(3, |comm| {
    ///     let own = vec![comm.rank() as f32; comm.rank()];
    ///     comm.all_gather_vec(&own)
    /// })?;
    /// assert_eq!(gathered, vec![vec![vec![], vec![1.0], vec![2.0, 2.0]]; 3]);
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn all_gather_vec<T: Element>(&self, input: &[T]) -> Result<Vec<Vec<T>>> {
        self.in_one_turn(|comm| comm.all_gather_shares(OpKind::AllGatherVec, Ok(input)))
    }

    /// Returns the inputs of all ranks, by rank, at the root. Other ranks get `None`.
    ///
    /// The lengths may differ, and the root need not know them: the call exchanges them first.
    /// [`Communicator::gather_v`] is faster where the root knows all lengths.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidUsage`](crate::ErrorKind::InvalidUsage) if there is no such root;
    /// otherwise as [`Communicator::all_reduce`].
    ///
    /// ```
    /// let gathered = unisono::local(3, |comm| {
    ///     let losses = vec![0.5f32; comm.rank() + 1];
    ///     comm.gather_vec(&losses, 2)
    /// })?;
    /// assert_eq!(gathered[2], Some(vec![vec![0.5], vec![0.5; 2], vec![0.5; 3]]));
    /// assert_eq!(gathered[0], None);
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn gather_vec<T: Element>(&self, input: &[T], root: Rank) -> Result<Option<Vec<Vec<T>>>> {
        let kind = OpKind::GatherVec;
        self.arg_check(kind).require_rank("root", root)?;
        self.in_one_turn(|comm| comm.gather_shares(kind, Ok(input), root))
    }

    /// Returns the root's vector for this rank. Only the root gives vectors, one for each rank.
    ///
    /// The lengths may differ, and the other ranks need not know theirs: the call tells them first.
    /// [`Communicator::scatter_v`] is faster where each rank knows its length.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidUsage`](crate::ErrorKind::InvalidUsage) if there is no such root, or if
    /// the root gives no vectors or another number of them; otherwise as
    /// [`Communicator::all_reduce`].
    ///
    /// ```
    /// let parts = unisono::local(2, |comm| {
    ///     let all = (comm.rank() == 0).then(|| vec![vec![1u32], vec![2, 3]]);
    ///     comm.scatter_vec(all.as_deref(), 0)
    /// })?;
    /// assert_eq!(parts, [vec![1], vec![2, 3]]);
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn scatter_vec<T: Element>(&self, inputs: Option<&[Vec<T>]>, root: Rank) -> Result<Vec<T>> {
        let kind = OpKind::ScatterVec;
        let args = self.arg_check(kind);
        args.require_rank("root", root)?;
        let inputs = args.root_input("list of vectors", root, inputs)?;
        args.require_length_if(self.rank() == root, "list of vectors", inputs.len(), self.size())?;
        self.in_one_turn(|comm| comm.scatter_shares(kind, Ok(inputs), root))
    }
}
