//! The blocking collectives of vectors. Each rank knows only the length of its own vector.
//!
//! They return vectors of the right lengths. They need one more exchange than the forms in
//! `uneven.rs`, to which callers give the counts.

use crate::communicator::Communicator;
use crate::error::Result;
use crate::op_desc::OpKind;
use crate::schedule::Rank;
use unisono_reducers::Element;

impl Communicator {
    /// Returns the inputs of all ranks, by rank, on every rank.
    ///
    /// The lengths may differ. Ranks need not know the lengths of other ranks, because the call
    /// exchanges them first. If all ranks know all lengths, [`Communicator::all_gather_v`] is
    /// faster.
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
    /// The lengths may differ. The root need not know them, because the call exchanges them first.
    /// If the root knows all lengths, [`Communicator::gather_v`] is faster.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidUsage`](crate::ErrorKind::InvalidUsage) if there is no such root. Other
    /// errors are those of [`Communicator::all_reduce`].
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
    /// The lengths may differ. A rank need not know the length of its vector, because the root
    /// sends it first. If each rank knows its length, [`Communicator::scatter_v`] is faster.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidUsage`](crate::ErrorKind::InvalidUsage) if there is no such root, or if
    /// the root does not give one vector for each rank. Other errors are those of
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
        let share = self.in_one_turn(|comm| comm.scatter_shares(kind, Ok(inputs), root))?;
        Ok(share.unwrap_or_else(|| inputs[root].clone()))
    }
}
