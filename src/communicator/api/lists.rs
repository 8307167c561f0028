//! Collectives that move data between lists of buffers, with one buffer for each share. No list is
//! copied into one buffer.

use crate::communicator::Communicator;
use crate::engine::Transfer;
use crate::error::Result;
use crate::op_desc::{OpDesc, OpKind};
use crate::schedule::{Collective, Rank};
use unisono_reducers::DType;

/// Describes a collective between lists of buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListOperation {
    /// [`Collective::Gather`], `Scatter`, `AllGather` or `AllToAll`.
    pub collective: Collective,
    /// The type of the elements.
    pub dtype: DType,
    /// The root. Collectives without a root ignore it.
    pub root: Rank,
}

impl ListOperation {
    /// Creates an operation with root 0.
    pub fn new(collective: Collective, dtype: DType) -> Self {
        Self { collective, dtype, root: 0 }
    }

    /// Returns the same operation with another root.
    pub fn with_root(self, root: Rank) -> Self {
        Self { root, ..self }
    }

    /// Returns the kind of the call, or `None` if the collective has no form with lists.
    fn kind(&self) -> Option<OpKind> {
        match self.collective {
            Collective::Gather => Some(OpKind::GatherV),
            Collective::Scatter => Some(OpKind::ScatterV),
            Collective::AllToAll => Some(OpKind::AllToAllV),
            Collective::AllGather => Some(OpKind::AllGatherList),
            _ => None,
        }
    }
}

impl Communicator {
    /// Runs a gather, scatter, all_gather or all_to_all between lists of buffers, as
    /// [`Collective::shares`] numbers them.
    ///
    /// A rank that sends to, or receives from, all ranks gives a list with a buffer for each rank.
    /// A rank that sends or receives one share gives a list of one buffer, and a rank without a
    /// share gives an empty list. The buffers of a list may have different lengths. A buffer that
    /// is sent must be as long as the buffer that receives it. All parts travel directly between
    /// two ranks, and no list is copied into one buffer.
    ///
    /// Ranks may mix this call with [`Communicator::gather_v`], [`Communicator::scatter_v`] or
    /// [`Communicator::all_to_all_v`], which send the same messages. For an all_gather, every rank
    /// must call this method.
    ///
    /// # Errors
    /// - [`ErrorKind::InvalidUsage`](crate::ErrorKind::InvalidUsage): another collective, a list
    ///   with another number of buffers, or a buffer that does not hold whole elements. The same
    ///   error is returned if a rank's share for itself has two lengths.
    /// - [`ErrorKind::CountMismatch`](crate::ErrorKind::CountMismatch): two ranks give different
    ///   lengths for a share.
    ///
    /// After an error, `outputs` is [unspecified](crate::Error#buffers-after-an-error).
    ///
    /// ```
    /// # use unisono::{Communicator, DType, ListOperation, schedule::Collective};
    /// # let ranks = Communicator::local(2)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// let own = [comm.rank() as u8; 3];
    /// let (mut first, mut second) = ([9; 3], [9; 3]);
    /// let gather = ListOperation::new(Collective::AllGather, DType::U8);
    /// comm.run_list_operation(&gather, &[&own], &mut [&mut first, &mut second]).unwrap();
    /// assert_eq!((first, second), ([0; 3], [1; 3]));
    /// # }); });
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn run_list_operation(
        &self,
        operation: &ListOperation,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
    ) -> Result<()> {
        let kind = self.check_lists(operation, inputs, outputs)?;
        let ListOperation { collective, dtype, root } = *operation;
        let root = if collective.has_root() { root } else { 0 };
        let inputs: Vec<_> = inputs.iter().map(|part| (0, *part)).collect();
        let outputs = outputs.iter_mut().map(|part| &mut **part).collect();
        self.move_shares((kind, collective), (dtype, root), &inputs, outputs)
    }

    /// Moves checked shares directly between pairs of ranks. An input has its offset in the user's
    /// buffer, in elements.
    pub(in crate::communicator) fn move_shares(
        &self,
        (kind, collective): (OpKind, Collective),
        (dtype, root): (DType, Rank),
        inputs: &[(usize, &[u8])],
        outputs: Vec<&mut [u8]>,
    ) -> Result<()> {
        let (rank, ranks) = (self.rank(), self.size());
        let mut outputs: Vec<_> = outputs.into_iter().map(Some).collect();
        self.with_engine(|engine| {
            let op = engine.number(OpDesc::new(0, kind, dtype, None, root, 0));
            let call = |bytes: usize| op.with_count((bytes / dtype.size()) as u64);
            let mut transfers = Vec::with_capacity(inputs.len() + outputs.len());
            // Every rank begins with its nearest neighbor, so that no rank is the first peer of all
            // others.
            for distance in 0..ranks {
                let (receiver, sender) = ((rank + distance) % ranks, (rank + ranks - distance) % ranks);
                if let Some(&(offset, part)) = sent_to(collective, root, receiver, inputs) {
                    transfers.push(Transfer::send(receiver, part, call(part.len())).with_offset(offset));
                }
                if let Some(part) = received_from(collective, root, sender, &mut outputs) {
                    let desc = call(part.len());
                    transfers.push(Transfer::recv(sender, part, desc));
                }
            }
            engine.transfer(&mut transfers)
        })
    }

    /// Checks the lists and returns the kind of the call.
    fn check_lists(
        &self,
        operation: &ListOperation,
        inputs: &[&[u8]],
        outputs: &[&mut [u8]],
    ) -> Result<OpKind> {
        let ListOperation { collective, dtype, root } = *operation;
        let Some(kind) = operation.kind() else {
            let what = "lists of buffers are for gather, scatter, all_gather and all_to_all";
            return Err(self.arg_check(collective).invalid(what.to_owned()));
        };
        let args = self.arg_check(kind);
        if collective.has_root() {
            args.require_rank("root", root)?;
        }
        let (rank, ranks) = (self.rank(), self.size());
        let (sends, receives) = collective.shares(ranks, root, rank);
        args.require_length("inputs", inputs.len(), sends)?;
        args.require_length("outputs", outputs.len(), receives)?;
        let lengths = inputs.iter().map(|part| part.len()).chain(outputs.iter().map(|part| part.len()));
        if let Some(bytes) = lengths.into_iter().find(|bytes| bytes % dtype.size() != 0) {
            return Err(
                args.invalid(format!("a buffer of {bytes} bytes does not hold whole elements of {dtype}"))
            );
        }
        let own_input = sent_to(collective, root, rank, inputs).filter(|_| receives > 0);
        let own_output = outputs.get(if receives > 1 { rank } else { 0 });
        if let (Some(input), Some(output)) = (own_input, own_output) {
            args.require_length("the output for the own share", output.len(), input.len())?;
        }
        Ok(kind)
    }
}

/// Returns the input that this rank sends to `peer`.
fn sent_to<T>(collective: Collective, root: Rank, peer: Rank, inputs: &[T]) -> Option<&T> {
    match collective {
        Collective::Gather => inputs.first().filter(|_| peer == root),
        Collective::AllGather => inputs.first(),
        _ => inputs.get(peer),
    }
}

/// Takes the buffer in which this rank receives from `peer`.
fn received_from<'a>(
    collective: Collective,
    root: Rank,
    peer: Rank,
    outputs: &mut [Option<&'a mut [u8]>],
) -> Option<&'a mut [u8]> {
    match collective {
        Collective::Scatter => outputs.first_mut().filter(|_| peer == root),
        _ => outputs.get_mut(peer),
    }?
    .take()
}
