//! What each step does to the expressions in memory, and what it must not do.

use super::machine::{Machine, Outcome, Stepped, is_remote};
use super::order::StrandId;
use super::value::{EMPTY, RAW, Value};
use super::violation::Fault;
use crate::schedule::{Block, Place, Rank, Reach, Space};

impl Machine<'_> {
    pub(super) fn send(&mut self, strand: StrandId, peer: Rank, blocks: &[Block]) -> Stepped {
        if let blocked @ Outcome::Blocked(..) = self.room_towards(strand, peer)? {
            return Ok(blocked);
        }
        let rank = self.runner(strand).rank;
        no_windows(blocks)?;
        let mut values = self.blank();
        for &block in blocks {
            values.push(self.read(strand, &Place { rank, block })?);
        }
        self.post(strand, peer, values);
        Ok(Outcome::Done)
    }

    pub(super) fn recv(&mut self, strand: StrandId, peer: Rank, into: &[Block]) -> Stepped {
        let message = match self.take(strand, peer)? {
            Ok(message) => message,
            Err(blocked) => return Ok(blocked),
        };
        let rank = self.runner(strand).rank;
        no_windows(into)?;
        if message.len() != into.len() {
            return Err(Fault::MessageBlocks(message.len(), into.len(), into.len()));
        }
        self.are_apart(rank, into, &[])?;
        // The receiver knows the lengths of the caller's blocks; the rest of the message is cut evenly.
        let mut in_scratch = into.iter().zip(&message).filter(|(block, _)| block.space == Space::Scratch);
        if let Some((_, &first)) = in_scratch.next()
            && in_scratch.any(|(_, &value)| self.values.length(value) != self.values.length(first))
        {
            return Err(Fault::MixedLengths);
        }
        for (&block, &value) in into.iter().zip(&message) {
            self.write(strand, &Place { rank, block }, value)?;
        }
        self.discard(message);
        Ok(Outcome::Done)
    }

    pub(super) fn recv_reduce(
        &mut self,
        strand: StrandId,
        peer: Rank,
        with: &[Block],
        into: &[Block],
        finish: bool,
    ) -> Stepped {
        self.combines()?;
        let message = match self.take(strand, peer)? {
            Ok(message) => message,
            Err(blocked) => return Ok(blocked),
        };
        let rank = self.runner(strand).rank;
        no_windows(with)?;
        no_windows(into)?;
        if message.len() != into.len() || into.len() != with.len() {
            return Err(Fault::MessageBlocks(message.len(), with.len(), into.len()));
        }
        self.are_apart(rank, into, with)?;
        for ((&with, &block), &arrived) in with.iter().zip(into).zip(&message) {
            let home = self.read(strand, &Place { rank, block: with })?;
            let value = self.combined(&[home, arrived], finish)?;
            self.write(strand, &Place { rank, block }, value)?;
        }
        self.discard(message);
        Ok(Outcome::Done)
    }

    pub(super) fn copy(&mut self, strand: StrandId, from: &Place, into: &Place) -> Stepped {
        if from.block.space == Space::Window && !is_callers(into.block) {
            return Err(Fault::UnknownLength);
        }
        self.count_remote(strand, from);
        self.count_remote(strand, into);
        let value = self.read(strand, from)?;
        // In place, a block that is copied onto itself is left alone.
        let kept = (from.block.space, into.block.space) == (Space::Input, Space::Output);
        if kept && from.rank == into.rank && self.cell(strand, from)? == self.cell(strand, into)? {
            let cell = self.cell(strand, into)?;
            self.memories[into.rank].cells[cell] = value;
            return Ok(Outcome::Done);
        }
        self.write(strand, into, value)?;
        Ok(Outcome::Done)
    }

    pub(super) fn reduce(&mut self, strand: StrandId, from: &[Place], into: &Place, finish: bool) -> Stepped {
        self.combines()?;
        if from.is_empty() {
            return Err(Fault::NoOperands);
        }
        if !is_callers(into.block) && from.iter().all(|place| place.block.space == Space::Window) {
            return Err(Fault::UnknownLength);
        }
        if into.block.space == Space::Window && from[1..].contains(into) {
            return Err(Fault::Overlap(into.block));
        }
        let operands = from.iter().map(|place| {
            self.count_remote(strand, place);
            self.read(strand, place)
        });
        let operands = operands.collect::<Result<Vec<Value>, Fault>>()?;
        // What is added to where it lies is moved once.
        if from[0] != *into {
            self.count_remote(strand, into);
        }
        let value = self.combined(&operands, finish)?;
        self.write(strand, into, value)?;
        Ok(Outcome::Done)
    }

    /// The sum of `operands`, which must be equally long.
    fn combined(&mut self, operands: &[Value], finish: bool) -> Result<Value, Fault> {
        let length = self.values.length(operands[0]);
        if operands.iter().any(|&operand| self.values.length(operand) != length) {
            return Err(Fault::MixedLengths);
        }
        let sum = self.values.sum(operands);
        Ok(if finish { self.values.finished(sum) } else { sum })
    }

    fn combines(&self) -> Result<(), Fault> {
        if self.schedule.collective.reduces() { Ok(()) } else { Err(Fault::Combines) }
    }

    fn count_remote(&mut self, strand: StrandId, place: &Place) {
        self.blocks += u64::from(is_remote(place, self.runner(strand).rank));
    }

    /// The buffers are the caller's again, who may do anything with them: no peer may still reach them.
    pub(super) fn hand_back(&mut self, strand: StrandId) -> Result<(), Fault> {
        let (rank, now) = (self.runner(strand).rank, self.now(strand));
        for space in [Space::Input, Space::Output] {
            for index in 0..self.memories[rank].room.blocks(space) {
                let place = Place { rank, block: Block { space, index: index as u32 } };
                let cell = self.cell(strand, &place)?;
                if let Some(other) = self.memories[rank].records.write(&self.clocks, cell, now) {
                    return Err(self.race(&place, other));
                }
            }
        }
        Ok(())
    }

    /// What `place` holds, for a step of `strand` to use.
    fn read(&mut self, strand: StrandId, place: &Place) -> Result<Value, Fault> {
        let cell = self.cell(strand, place)?;
        let now = self.now(strand);
        if let Some(other) = self.memories[place.rank].records.read(&self.clocks, cell, now) {
            return Err(self.race(place, other));
        }
        self.peek(place)
    }

    /// What `place` holds. The input is there as long as its memory was not overwritten.
    fn peek(&self, place: &Place) -> Result<Value, Fault> {
        let Place { rank, block } = *place;
        let memory = &self.memories[rank];
        let value = memory.room.cell(block).map_or(EMPTY, |cell| memory.cells[cell]);
        let index = block.index as usize;
        match (block.space, value) {
            (Space::Input, RAW) => Ok(self.values.leaf(rank, index)),
            // Reading the input pre-multiplies it, so what replaced it is another value even if it is the input.
            (Space::Input, value)
                if self.schedule.collective.reduces() || value != self.values.leaf(rank, index) =>
            {
                Err(Fault::InputOverwritten(block))
            }
            (_, EMPTY | RAW) => Err(Fault::Empty(rank, block)),
            (_, value) => Ok(value),
        }
    }

    fn write(&mut self, strand: StrandId, place: &Place, value: Value) -> Result<(), Fault> {
        let Place { rank, block } = *place;
        let cell = self.cell(strand, place)?;
        if block.space == Space::Input {
            return Err(Fault::InputWritten(block));
        }
        if block.space == Space::Output && self.values.length(value) != self.output_length(rank, block) {
            return Err(Fault::WrongLength(block));
        }
        let now = self.now(strand);
        if let Some(other) = self.memories[rank].records.write(&self.clocks, cell, now) {
            return Err(self.race(place, other));
        }
        self.memories[rank].cells[cell] = value;
        Ok(())
    }

    fn output_length(&self, rank: Rank, block: Block) -> u32 {
        let (index, parts) = (block.index as usize, self.schedule.parts);
        let (_, shares) =
            self.schedule.collective.shares(self.schedule.spec.ranks, self.schedule.spec.root, rank);
        // With a share for each rank, the share tells whose it is.
        let owner = if shares > 1 { index / parts } else { rank };
        self.values.length_of(owner, index)
    }

    fn race(&self, place: &Place, other: super::order::Access) -> Fault {
        let other = self.at(other.strand, other.tick as usize - 1);
        Fault::Race { rank: place.rank, block: place.block, other }
    }

    /// The cell of `place`, if `strand` can reach it.
    fn cell(&self, strand: StrandId, place: &Place) -> Result<usize, Fault> {
        let Place { rank, block } = *place;
        let memory = self.memories.get(rank).ok_or(Fault::NoSuchPeer(rank))?;
        let reachable = match block.space {
            Space::Window => true,
            Space::Input | Space::Output => self.schedule.reach == Reach::Buffers,
            Space::Scratch => false,
        };
        if is_remote(place, self.runner(strand).rank) && !reachable {
            return Err(Fault::NotReachable(rank, block));
        }
        memory.room.cell(block).ok_or(Fault::NoSuchBlock(rank, block))
    }

    /// Whether the blocks `into` are different memories, and each `with` is none of them but its own.
    fn are_apart(&self, rank: Rank, into: &[Block], with: &[Block]) -> Result<(), Fault> {
        if into.len() < 2 {
            return Ok(());
        }
        let room = &self.memories[rank].room;
        let mut cells: Vec<_> =
            into.iter().enumerate().map(|(index, &block)| (room.cell(block), index)).collect();
        cells.sort_unstable();
        if let Some(twice) = cells.windows(2).find(|pair| pair[0].0.is_some() && pair[0].0 == pair[1].0) {
            return Err(Fault::Overlap(into[twice[0].1]));
        }
        for (index, &block) in with.iter().enumerate() {
            let found = cells.binary_search_by_key(&room.cell(block), |&(cell, _)| cell);
            if found.is_ok_and(|found| cells[found].0.is_some() && cells[found].1 != index) {
                return Err(Fault::Overlap(block));
            }
        }
        Ok(())
    }
}

/// Whether the block's length follows from the caller's buffers.
fn is_callers(block: Block) -> bool {
    matches!(block.space, Space::Input | Space::Output)
}

/// Messages are cut from private memory.
fn no_windows(blocks: &[Block]) -> Result<(), Fault> {
    match blocks.iter().find(|block| block.space == Space::Window) {
        Some(&block) => Err(Fault::WindowMessage(block)),
        None => Ok(()),
    }
}
