//! Sends and receives, one by one or together.

use crate::communicator::Communicator;
use crate::engine::{Direction, Engine, Transfer};
use crate::error::Result;
use crate::op_desc::{OpDesc, OpKind};
use crate::schedule::Rank;
use unisono_cuda::{DType, Element, as_bytes, as_bytes_mut};

/// Sends and receives collected by [`Communicator::group`], to be carried out together.
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
    /// Will send `buffer` to `peer`, which must receive as many elements.
    pub fn send<T: Element>(&mut self, buffer: &'a [T], peer: Rank) -> &mut Self {
        self.entries.push(GroupEntry::Send { peer, bytes: as_bytes(buffer), dtype: T::DTYPE });
        self
    }

    /// Will receive `buffer` from `peer`, which must send as many elements.
    pub fn recv<T: Element>(&mut self, buffer: &'a mut [T], peer: Rank) -> &mut Self {
        self.entries.push(GroupEntry::Recv { peer, bytes: as_bytes_mut(buffer), dtype: T::DTYPE });
        self
    }

    /// What goes from a rank to itself must come out in the same lengths.
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
            "what a rank sends to itself it must receive in the same group, in the same order and lengths";
        Err(text.to_owned())
    }
}

impl GroupEntry<'_> {
    fn peer(&self) -> Rank {
        match self {
            GroupEntry::Send { peer, .. } | GroupEntry::Recv { peer, .. } => *peer,
        }
    }
}

impl Communicator {
    /// Sends `buffer` to `peer`; returns when it has been handed to the transport.
    ///
    /// A long message needs its receiver: two ranks that send to each other first must use
    /// [`Communicator::group`] or [`Communicator::send_recv`].
    ///
    /// # Errors
    /// Misuse for a peer that is none or this rank itself; else as every operation.
    pub fn send<T: Element>(&self, buffer: &[T], peer: Rank) -> Result<()> {
        self.check_peer(peer)?;
        let entry = GroupEntry::Send { peer, bytes: as_bytes(buffer), dtype: T::DTYPE };
        self.with_engine(|engine| {
            let transfer = with_sequence(engine, entry);
            engine.transfer(&mut [transfer])
        })
    }

    /// Receives `buffer` from `peer`.
    ///
    /// # Errors
    /// As [`Communicator::send`]; a message of another length or type is a mismatch that names both.
    pub fn recv<T: Element>(&self, buffer: &mut [T], peer: Rank) -> Result<()> {
        self.check_peer(peer)?;
        let entry = GroupEntry::Recv { peer, bytes: as_bytes_mut(buffer), dtype: T::DTYPE };
        self.with_engine(|engine| {
            let transfer = with_sequence(engine, entry);
            engine.transfer(&mut [transfer])
        })
    }

    /// Sends to one rank and receives from another (or the same) at once.
    ///
    /// # Errors
    /// As [`Communicator::send`].
    pub fn send_recv<T: Element>(&self, input: &[T], to: Rank, output: &mut [T], from: Rank) -> Result<()> {
        self.group(|group| {
            group.send(input, to).recv(output, from);
        })
    }

    /// Carries out all sends and receives that `collect` asks for, concurrently: no order among them can
    /// deadlock. Those between the same two ranks keep their order.
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
    /// As [`Communicator::send`].
    pub fn group<'a>(&self, collect: impl FnOnce(&mut Group<'a>)) -> Result<()> {
        let mut group = Group::default();
        collect(&mut group);
        for entry in &group.entries {
            self.arg_check(OpKind::SendRecv).require_rank("peer", entry.peer())?;
        }
        let own = group.check_self_transfers(self.rank());
        own.map_err(|text| self.arg_check(OpKind::SendRecv).invalid(text))?;
        self.with_engine(|engine| {
            let mut transfers: Vec<_> =
                group.entries.into_iter().map(|entry| with_sequence(engine, entry)).collect();
            engine.transfer(&mut transfers)
        })
    }

    /// Gives rank i the next `send_counts[i]` elements of `input`; `output` gets `recv_counts[i]` from rank i.
    ///
    /// # Errors
    /// Misuse if the counts do not add up to the buffers; a mismatch that names both ranks' counts if the
    /// ranks disagree; else as every operation.
    pub fn all_to_all_v<T: Element>(
        &self,
        input: &[T],
        send_counts: &[usize],
        output: &mut [T],
        recv_counts: &[usize],
    ) -> Result<()> {
        let (rank, ranks) = (self.rank(), self.size());
        let asked = self.arg_check(OpKind::AllToAllV);
        asked.require_length("send_counts", send_counts.len(), ranks)?;
        asked.require_length("recv_counts", recv_counts.len(), ranks)?;
        asked.require_length("input", input.len(), asked.total_count(send_counts)?)?;
        asked.require_length("output", output.len(), asked.total_count(recv_counts)?)?;
        asked.require_length("recv_counts[own rank]", recv_counts[rank], send_counts[rank])?;
        let (mut sends, mut receives) = (Vec::new(), Vec::new());
        let (mut offset, mut output) = (0, output);
        for (send_count, recv_count) in send_counts.iter().zip(recv_counts) {
            let (receive, output_rest) = output.split_at_mut(*recv_count);
            output = output_rest;
            sends.push((offset, &input[offset..][..*send_count]));
            offset += send_count;
            receives.push(receive);
        }
        self.with_engine(|engine| {
            let sequence = engine.take_sequence();
            let call = |count| OpDesc::new(sequence, OpKind::AllToAllV, T::DTYPE, None, 0, count as u64);
            let sends = sends.iter().enumerate().map(|(peer, &(offset, part))| {
                (peer, Transfer::send(peer, as_bytes(part), call(part.len())).with_offset(offset))
            });
            let receives = receives.into_iter().enumerate().map(|(peer, part)| {
                let call = call(part.len());
                (peer, Transfer::recv(peer, as_bytes_mut(part), call))
            });
            // Nearest neighbours first, so that no rank is everybody's first.
            let mut transfers: Vec<_> = sends
                .map(|(peer, transfer)| ((peer + ranks - rank) % ranks, transfer))
                .chain(receives.map(|(peer, transfer)| ((rank + ranks - peer) % ranks, transfer)))
                .collect();
            transfers.sort_by_key(|(distance, _)| *distance);
            let mut transfers: Vec<_> = transfers.into_iter().map(|(_, transfer)| transfer).collect();
            engine.transfer(&mut transfers)
        })
    }

    fn check_peer(&self, peer: Rank) -> Result<()> {
        let asked = self.arg_check(OpKind::SendRecv);
        asked.require_rank("peer", peer)?;
        if peer == self.rank() {
            let text = "a rank can send to itself only within a group that also receives it";
            return Err(asked.invalid(format!("peer is rank {peer} itself: {text}")));
        }
        Ok(())
    }
}

/// Gives a transfer its number among those of its peer and direction.
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
