//! Applies each step to the expressions in memory, and rejects invalid steps.

use super::violation::StepError;
use crate::schedule::check::executor::{Executor, Outcome, StepResult, is_remote};
use crate::schedule::check::expression::{ExprId, ORIGINAL_INPUT, UNINITIALIZED};
use crate::schedule::check::vector_clock::LaneProgramId;
use crate::schedule::{Chunk, ChunkRef, PeerAccess, Rank, Space};

impl Executor<'_> {
    pub(super) fn send(&mut self, lane_program: LaneProgramId, peer: Rank, chunks: &[Chunk]) -> StepResult {
        if let blocked @ Outcome::Blocked(..) = self.can_send(lane_program, peer)? {
            return Ok(blocked);
        }
        let rank = self.lane_state(lane_program).rank;
        check_no_windows(chunks)?;
        let mut values = self.take_free_message();
        for &chunk in chunks {
            values.push(self.read(lane_program, &ChunkRef { rank, chunk })?);
        }
        self.enqueue(lane_program, peer, values);
        Ok(Outcome::Done)
    }

    pub(super) fn recv(&mut self, lane_program: LaneProgramId, peer: Rank, targets: &[Chunk]) -> StepResult {
        let message = match self.dequeue(lane_program, peer)? {
            Ok(message) => message,
            Err(blocked) => return Ok(blocked),
        };
        let rank = self.lane_state(lane_program).rank;
        check_no_windows(targets)?;
        if message.len() != targets.len() {
            return Err(StepError::ChunkCountMismatch(message.len(), targets.len(), targets.len()));
        }
        self.check_disjoint(rank, targets, &[])?;
        // The receiver knows the lengths of the caller's chunks and cuts the rest evenly.
        let mut in_scratch = targets.iter().zip(&message).filter(|(chunk, _)| chunk.space == Space::Scratch);
        if let Some((_, &first)) = in_scratch.next()
            && in_scratch.any(|(_, &value)| self.values.length(value) != self.values.length(first))
        {
            return Err(StepError::MixedLengths);
        }
        for (&chunk, &value) in targets.iter().zip(&message) {
            self.write(lane_program, &ChunkRef { rank, chunk }, value)?;
        }
        self.recycle_message(message);
        Ok(Outcome::Done)
    }

    pub(super) fn recv_reduce(
        &mut self,
        lane_program: LaneProgramId,
        peer: Rank,
        operands: &[Chunk],
        targets: &[Chunk],
        finish: bool,
    ) -> StepResult {
        self.check_reduces()?;
        let message = match self.dequeue(lane_program, peer)? {
            Ok(message) => message,
            Err(blocked) => return Ok(blocked),
        };
        let rank = self.lane_state(lane_program).rank;
        check_no_windows(operands)?;
        check_no_windows(targets)?;
        if message.len() != targets.len() || targets.len() != operands.len() {
            return Err(StepError::ChunkCountMismatch(message.len(), operands.len(), targets.len()));
        }
        self.check_disjoint(rank, targets, operands)?;
        for ((&operand, &chunk), &arrived) in operands.iter().zip(targets).zip(&message) {
            let home = self.read(lane_program, &ChunkRef { rank, chunk: operand })?;
            let value = self.reduced(&[home, arrived], finish)?;
            self.write(lane_program, &ChunkRef { rank, chunk }, value)?;
        }
        self.recycle_message(message);
        Ok(Outcome::Done)
    }

    pub(super) fn copy(
        &mut self,
        lane_program: LaneProgramId,
        source: &ChunkRef,
        target: &ChunkRef,
    ) -> StepResult {
        if source.chunk.space == Space::Window && !is_user_buffer(target.chunk) {
            return Err(StepError::UnknownLength);
        }
        self.count_remote(lane_program, source);
        self.count_remote(lane_program, target);
        let value = self.read(lane_program, source)?;
        // In place, a chunk that is copied onto itself is left alone.
        let kept = (source.chunk.space, target.chunk.space) == (Space::Input, Space::Output);
        if kept
            && source.rank == target.rank
            && self.resolve(lane_program, source)? == self.resolve(lane_program, target)?
        {
            let cell = self.resolve(lane_program, target)?;
            self.memories[target.rank].contents[cell] = value;
            self.record(lane_program, target, cell, Some(value));
            return Ok(Outcome::Done);
        }
        self.write(lane_program, target, value)?;
        Ok(Outcome::Done)
    }

    pub(super) fn reduce(
        &mut self,
        lane_program: LaneProgramId,
        sources: &[ChunkRef],
        target: &ChunkRef,
        finish: bool,
    ) -> StepResult {
        self.check_reduces()?;
        if sources.is_empty() {
            return Err(StepError::NoOperands);
        }
        if !is_user_buffer(target.chunk) && sources.iter().all(|place| place.chunk.space == Space::Window) {
            return Err(StepError::UnknownLength);
        }
        if target.chunk.space == Space::Window && sources[1..].contains(target) {
            return Err(StepError::Overlap(target.chunk));
        }
        let operands = sources.iter().map(|place| {
            self.count_remote(lane_program, place);
            self.read(lane_program, place)
        });
        let operands = operands.collect::<Result<Vec<ExprId>, StepError>>()?;
        // A reduction in place counts its target only once.
        if sources[0] != *target {
            self.count_remote(lane_program, target);
        }
        let value = self.reduced(&operands, finish)?;
        self.write(lane_program, target, value)?;
        Ok(Outcome::Done)
    }

    /// The sum of `operands`, which must be equally long.
    fn reduced(&mut self, operands: &[ExprId], finish: bool) -> Result<ExprId, StepError> {
        let length = self.values.length(operands[0]);
        if operands.iter().any(|&operand| self.values.length(operand) != length) {
            return Err(StepError::MixedLengths);
        }
        let sum = self.values.sum(operands);
        Ok(if finish { self.values.finished(sum) } else { sum })
    }

    fn check_reduces(&self) -> Result<(), StepError> {
        if self.schedule.collective.reduces() { Ok(()) } else { Err(StepError::UnexpectedReduction) }
    }

    fn count_remote(&mut self, lane_program: LaneProgramId, place: &ChunkRef) {
        self.chunks_moved += u64::from(is_remote(place, self.lane_state(lane_program).rank));
    }

    /// The buffers are the caller's again after the call, so no peer may still access them.
    pub(super) fn release_buffers(&mut self, lane_program: LaneProgramId) -> Result<(), StepError> {
        let (rank, now) = (self.lane_state(lane_program).rank, self.current_access(lane_program));
        for space in [Space::Input, Space::Output] {
            for index in 0..self.memories[rank].address_space.chunks(space) {
                let place = ChunkRef { rank, chunk: Chunk { space, index: index as u32 } };
                let cell = self.resolve(lane_program, &place)?;
                if let Some(other) = self.memories[rank].records.write(&self.clocks, cell, now) {
                    return Err(self.race_error(&place, other));
                }
            }
        }
        Ok(())
    }

    /// The value at `place`, for a step of `lane_program`.
    fn read(&mut self, lane_program: LaneProgramId, place: &ChunkRef) -> Result<ExprId, StepError> {
        let cell = self.resolve(lane_program, place)?;
        let now = self.current_access(lane_program);
        if let Some(other) = self.memories[place.rank].records.read(&self.clocks, cell, now) {
            return Err(self.race_error(place, other));
        }
        self.record(lane_program, place, cell, None);
        self.peek(place)
    }

    /// Records an access, if a violation is to be explained.
    fn record(&mut self, lane_program: LaneProgramId, place: &ChunkRef, cell: usize, stored: Option<ExprId>) {
        let access = self.current_access(lane_program);
        if let Some(history) = &mut self.history {
            history.add(access, *place, cell, stored);
        }
    }

    /// The value at `place`. The input is there as long as its memory was not overwritten.
    fn peek(&self, place: &ChunkRef) -> Result<ExprId, StepError> {
        let ChunkRef { rank, chunk } = *place;
        let memory = &self.memories[rank];
        let value = memory.address_space.address(chunk).map_or(UNINITIALIZED, |cell| memory.contents[cell]);
        let index = chunk.index as usize;
        match (chunk.space, value) {
            (Space::Input, ORIGINAL_INPUT) => Ok(self.values.leaf(rank, index)),
            // A read of the input pre-multiplies it. A stored value therefore differs, even if it
            // is the plain input.
            (Space::Input, value)
                if self.schedule.collective.reduces() || value != self.values.leaf(rank, index) =>
            {
                Err(StepError::InputOverwritten(chunk))
            }
            (_, UNINITIALIZED | ORIGINAL_INPUT) => Err(StepError::Uninitialized(rank, chunk)),
            (_, value) => Ok(value),
        }
    }

    fn write(
        &mut self,
        lane_program: LaneProgramId,
        place: &ChunkRef,
        value: ExprId,
    ) -> Result<(), StepError> {
        let ChunkRef { rank, chunk } = *place;
        let cell = self.resolve(lane_program, place)?;
        if chunk.space == Space::Input {
            return Err(StepError::InputWritten(chunk));
        }
        if chunk.space == Space::Output && self.values.length(value) != self.output_length(rank, chunk) {
            return Err(StepError::LengthMismatch(chunk));
        }
        let now = self.current_access(lane_program);
        if let Some(other) = self.memories[rank].records.write(&self.clocks, cell, now) {
            return Err(self.race_error(place, other));
        }
        self.memories[rank].contents[cell] = value;
        self.record(lane_program, place, cell, Some(value));
        Ok(())
    }

    fn output_length(&self, rank: Rank, chunk: Chunk) -> u32 {
        let (index, parts) = (chunk.index as usize, self.schedule.chunks_per_share);
        let (_, shares) =
            self.schedule.collective.shares(self.schedule.spec.ranks, self.schedule.spec.root, rank);
        // With a share for each rank, the share tells whose it is.
        let owner = if shares > 1 { index / parts } else { rank };
        self.values.length_of(owner, index)
    }

    fn race_error(&self, place: &ChunkRef, other: crate::schedule::check::vector_clock::Access) -> StepError {
        let other = self.location(other.lane_program, other.tick as usize - 1);
        StepError::Race { rank: place.rank, chunk: place.chunk, other }
    }

    /// The cell of `place`, if `lane_program` can reach it.
    fn resolve(&self, lane_program: LaneProgramId, place: &ChunkRef) -> Result<usize, StepError> {
        let ChunkRef { rank, chunk } = *place;
        let memory = self.memories.get(rank).ok_or(StepError::NoSuchPeer(rank))?;
        let reachable = match chunk.space {
            Space::Window => true,
            Space::Input | Space::Output => self.schedule.peer_access == PeerAccess::ZeroCopy,
            Space::Scratch => false,
        };
        if is_remote(place, self.lane_state(lane_program).rank) && !reachable {
            return Err(StepError::NotReachable(rank, chunk));
        }
        memory.address_space.address(chunk).ok_or(StepError::NoSuchChunk(rank, chunk))
    }

    /// Checks that the chunks `targets` differ in memory, and that no operand is the target of
    /// another.
    fn check_disjoint(&self, rank: Rank, targets: &[Chunk], operands: &[Chunk]) -> Result<(), StepError> {
        if targets.len() < 2 {
            return Ok(());
        }
        let room = &self.memories[rank].address_space;
        let mut cells: Vec<_> =
            targets.iter().enumerate().map(|(index, &chunk)| (room.address(chunk), index)).collect();
        cells.sort_unstable();
        if let Some(twice) = cells.windows(2).find(|pair| pair[0].0.is_some() && pair[0].0 == pair[1].0) {
            return Err(StepError::Overlap(targets[twice[0].1]));
        }
        for (index, &chunk) in operands.iter().enumerate() {
            let found = cells.binary_search_by_key(&room.address(chunk), |&(cell, _)| cell);
            if found.is_ok_and(|found| cells[found].0.is_some() && cells[found].1 != index) {
                return Err(StepError::Overlap(chunk));
            }
        }
        Ok(())
    }
}

/// Returns true if the chunk's length follows from the caller's buffers.
fn is_user_buffer(chunk: Chunk) -> bool {
    matches!(chunk.space, Space::Input | Space::Output)
}

/// Messages are cut from private memory.
fn check_no_windows(chunks: &[Chunk]) -> Result<(), StepError> {
    match chunks.iter().find(|chunk| chunk.space == Space::Window) {
        Some(&chunk) => Err(StepError::WindowInMessage(chunk)),
        None => Ok(()),
    }
}
