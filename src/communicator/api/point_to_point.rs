//! Sends and receives, which run one by one or in groups.

use crate::communicator::Communicator;
use crate::communicator::calls::counts::{split, split_mut};
use crate::engine::{Direction, Engine, Transfer};
use crate::error::Result;
use crate::op_desc::{OpDesc, OpKind};
use crate::schedule::{Collective, Rank};
use unisono_reducers::{DType, Element, as_bytes, as_bytes_mut};

/// A set of sends and receives, which [`Communicator::group`] runs concurrently.
#[derive(Debug, Default)]
pub struct Group<'a> {
    entries: Vec<GroupEntry<'a>>,
}

#[derive(Debug)]
enum GroupEntry<'a> {
    Send { peer: Rank, bytes: &'a [u8], dtype: DType },
    Recv { peer: Rank, bytes: &'a mut [u8], dtype: DType },
}

impl<'a> Group<'a> {
    /// Adds a send of `buffer` to `peer`, which must receive as many elements.
    pub fn send<T: Element>(&mut self, buffer: &'a [T], peer: Rank) -> &mut Self {
        self.entries.push(GroupEntry::Send { peer, bytes: as_bytes(buffer), dtype: T::DTYPE });
        self
    }

    /// Adds a receive of `buffer` from `peer`, which must send as many elements.
    pub fn recv<T: Element>(&mut self, buffer: &'a mut [T], peer: Rank) -> &mut Self {
        self.entries.push(GroupEntry::Recv { peer, bytes: as_bytes_mut(buffer), dtype: T::DTYPE });
        self
    }

    /// Adds a send of `bytes`, which hold elements of `dtype`. It is for callers that know the type
    /// only as a value.
    pub fn send_bytes(&mut self, dtype: DType, bytes: &'a [u8], peer: Rank) -> &mut Self {
        self.entries.push(GroupEntry::Send { peer, bytes, dtype });
        self
    }

    /// Adds a receive of `bytes`, which hold elements of `dtype`. It is for callers that know the
    /// type only as a value.
    pub fn recv_bytes(&mut self, dtype: DType, bytes: &'a mut [u8], peer: Rank) -> &mut Self {
        self.entries.push(GroupEntry::Recv { peer, bytes, dtype });
        self
    }

    /// Checks that messages of a rank to itself have matching receives.
    fn check_self_transfers(&self, rank: Rank) -> std::result::Result<(), String> {
        let sends = self.entries.iter().filter_map(|entry| match entry {
            GroupEntry::Send { peer, bytes, .. } if *peer == rank => Some(bytes.len()),
            _ => None,
        });
        let receives = self.entries.iter().filter_map(|entry| match entry {
            GroupEntry::Recv { peer, bytes, .. } if *peer == rank => Some(bytes.len()),
            _ => None,
        });
        if sends.eq(receives) {
            return Ok(());
        }
        let text =
            "a rank must receive its messages to itself in the same group, in the same order and lengths";
        Err(text.to_owned())
    }
}

impl GroupEntry<'_> {
    fn peer(&self) -> Rank {
        match self {
            GroupEntry::Send { peer, .. } | GroupEntry::Recv { peer, .. } => *peer,
        }
    }

    /// Returns the element type, and the bytes after the last whole element.
    fn remainder(&self) -> (DType, usize) {
        match self {
            GroupEntry::Send { bytes, dtype, .. } => (*dtype, bytes.len() % dtype.size()),
            GroupEntry::Recv { bytes, dtype, .. } => (*dtype, bytes.len() % dtype.size()),
        }
    }
}

impl Communicator {
    /// Sends `buffer` to `peer`. Returns when the transport has taken the data.
    ///
    /// `peer` must call [`Communicator::recv`] with as many elements. Two ranks that both send
    /// first may wait for each other. Use [`Communicator::group`] or [`Communicator::send_recv`] in
    /// this case.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    ///
    /// ```
    /// # let ranks = unisono::Communicator::local(2)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// let mut message = [7u32, 8];
    /// match comm.rank() {
    ///     0 => comm.send(&message, 1).unwrap(),
    ///     _ => comm.recv(&mut message, 0).unwrap(),
    /// }
    /// assert_eq!(message, [7, 8]);
    /// # }); });
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn send<T: Element>(&self, buffer: &[T], peer: Rank) -> Result<()> {
        self.check_peer(peer)?;
        let entry = GroupEntry::Send { peer, bytes: as_bytes(buffer), dtype: T::DTYPE };
        self.with_engine(|engine| {
            let transfer = with_sequence(engine, entry);
            engine.transfer(&mut [transfer])
        })
    }

    /// Receives `buffer` from `peer`, which must send as many elements. See [`Communicator::send`].
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]. After an error, `buffer` is
    /// [unspecified](crate::Error#buffers-after-an-error).
    ///
    /// ```
    /// # let ranks = unisono::Communicator::local(2)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// let mut message = [comm.rank() as u8];
    /// if comm.rank() == 0 {
    ///     comm.recv(&mut message, 1).unwrap();
    /// } else {
    ///     comm.send(&message, 0).unwrap();
    /// }
    /// assert_eq!(message, [1]);
    /// # }); });
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn recv<T: Element>(&self, buffer: &mut [T], peer: Rank) -> Result<()> {
        self.check_peer(peer)?;
        let entry = GroupEntry::Recv { peer, bytes: as_bytes_mut(buffer), dtype: T::DTYPE };
        self.with_engine(|engine| {
            let transfer = with_sequence(engine, entry);
            engine.transfer(&mut [transfer])
        })
    }

    /// Sends `input` to rank `to` and receives `output` from rank `from`, concurrently.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]. After an error, `output` is
    /// [unspecified](crate::Error#buffers-after-an-error).
    ///
    /// ```
    /// # let ranks = unisono::Communicator::local(2)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// let (peer, mut output) = (1 - comm.rank(), [0]);
    /// comm.send_recv(&[comm.rank()].map(|rank| rank as i32), peer, &mut output, peer).unwrap();
    /// assert_eq!(output, [peer as i32]);
    /// # }); });
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn send_recv<T: Element>(&self, input: &[T], to: Rank, output: &mut [T], from: Rank) -> Result<()> {
        self.group(|group| {
            group.send(input, to).recv(output, from);
        })
    }

    /// Carries out all sends and receives that `collect` adds. They run concurrently, so no order
    /// among them can deadlock. Sends and receives between the same two ranks keep their order.
    ///
    /// ```
    /// # use unisono::Communicator;
    /// # let comm = Communicator::local(1)?.remove(0);
    /// let (input, mut output) = ([1, 2, 3], [0; 3]);
    /// let (next, previous) = (0, 0);
    /// comm.group(|group| {
    ///     group.send(&input, next).recv(&mut output, previous);
    /// })?;
    /// assert_eq!(output, input);
    /// # Ok::<(), unisono::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::send`]. After an error, the receive buffers are
    /// [unspecified](crate::Error#buffers-after-an-error).
    pub fn group<'a>(&self, collect: impl FnOnce(&mut Group<'a>)) -> Result<()> {
        let mut group = Group::default();
        collect(&mut group);
        for entry in &group.entries {
            let args = self.arg_check(OpKind::SendRecv);
            args.require_rank("peer", entry.peer())?;
            if let (dtype, remainder @ 1..) = entry.remainder() {
                let text =
                    format!("the message for rank {} ends {remainder} bytes after an element", entry.peer());
                return Err(args.invalid(format!("{text} of {dtype}")));
            }
        }
        let checked = group.check_self_transfers(self.rank());
        checked.map_err(|text| self.arg_check(OpKind::SendRecv).invalid(text))?;
        self.with_engine(|engine| {
            // The numbers are taken in the turn of the call, so that they have the order in which
            // the messages go.
            let mut transfers: Vec<_> =
                group.entries.into_iter().map(|entry| with_sequence(engine, entry)).collect();
            engine.transfer(&mut transfers)
        })
    }

    /// Sends the next `send_counts[i]` elements of `input` to rank i, and receives `recv_counts[i]`
    /// elements from rank i into `output`, by rank.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidUsage`](crate::ErrorKind::InvalidUsage) if the sum of the counts is not
    /// the length of the buffer. If two ranks give different counts,
    /// [`ErrorKind::Mismatch`](crate::ErrorKind::Mismatch) shows both. Other errors are those of
    /// [`Communicator::all_reduce`]. After an error, `output` is
    /// [unspecified](crate::Error#buffers-after-an-error).
    ///
    /// ```
    /// # let ranks = unisono::Communicator::local(2)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// // Rank 0 keeps one element and sends two; rank 1 sends none and keeps one.
    /// let (input, sends, receives) = match comm.rank() {
    ///     0 => (vec![1u8, 2, 3], [1, 2], [1, 0]),
    ///     _ => (vec![4], [0, 1], [2, 1]),
    /// };
    /// let mut output = vec![0; receives.iter().sum()];
    /// comm.all_to_all_v(&input, &sends, &mut output, &receives).unwrap();
    /// assert_eq!(output, [vec![1], vec![2, 3, 4]][comm.rank()]);
    /// # }); });
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn all_to_all_v<T: Element>(
        &self,
        input: &[T],
        send_counts: &[usize],
        output: &mut [T],
        recv_counts: &[usize],
    ) -> Result<()> {
        let (rank, ranks) = (self.rank(), self.size());
        let args = self.arg_check(OpKind::AllToAllV);
        args.require_length("send_counts", send_counts.len(), ranks)?;
        args.require_length("recv_counts", recv_counts.len(), ranks)?;
        args.require_length("input", input.len(), args.total_count(send_counts)?)?;
        args.require_length("output", output.len(), args.total_count(recv_counts)?)?;
        args.require_length("recv_counts[own rank]", recv_counts[rank], send_counts[rank])?;
        let inputs = split(as_bytes(input), send_counts, size_of::<T>());
        let outputs = split_mut(as_bytes_mut(output), recv_counts, size_of::<T>());
        self.move_shares((OpKind::AllToAllV, Collective::AllToAll), (T::DTYPE, 0), &inputs, outputs)
    }

    fn check_peer(&self, peer: Rank) -> Result<()> {
        let args = self.arg_check(OpKind::SendRecv);
        args.require_rank("peer", peer)?;
        if peer == self.rank() {
            let text = "a rank can send to itself only within a group that also receives it";
            return Err(args.invalid(format!("peer is rank {peer} itself: {text}")));
        }
        Ok(())
    }
}

/// Gives a transfer its sequence number among the transfers with the same peer and direction.
fn with_sequence<'a>(engine: &mut Engine, entry: GroupEntry<'a>) -> Transfer<'a> {
    let call = |sequence, dtype: DType, bytes: usize| {
        OpDesc::new(sequence, OpKind::SendRecv, dtype, None, 0, (bytes / dtype.size()) as u64)
    };
    match entry {
        GroupEntry::Send { peer, bytes, dtype } => {
            let sequence = engine.take_pair_sequence(Direction::Send, peer);
            Transfer::send(peer, bytes, call(sequence, dtype, bytes.len()))
        }
        GroupEntry::Recv { peer, bytes, dtype } => {
            let sequence = engine.take_pair_sequence(Direction::Recv, peer);
            let length = bytes.len();
            Transfer::recv(peer, bytes, call(sequence, dtype, length))
        }
    }
}
