//! Instructions that send or receive a message.

use crate::engine::buffers::StepMemory;
use crate::engine::exec::arith::{pack_scaled, reduce_received};
use crate::engine::exec::instr::{InstrExec, InstrPoll};
use crate::engine::mismatch::{count_mismatch, tag_mismatch};
use crate::error::{Error, ErrorKind, Result};
use crate::schedule::{Chunk, Rank, Space};
use unisono_reducers::{Source, Store, copy_to};
use unisono_transports::{Link, Tag};

impl InstrExec<'_, '_, '_> {
    pub(super) fn send(&mut self, peer: Rank, chunks: &[Chunk]) -> Result<InstrPoll> {
        let bytes = chunks.iter().map(|&chunk| self.memory.bytes(chunk)).sum();
        let scaled =
            self.arithmetic.factor.is_some() && chunks.iter().any(|chunk| chunk.space == Space::Input);
        let link = link(self.links, peer)?;
        let sent = if scaled {
            // A send that was blocked finds its message still staged, unless another lane program
            // staged one.
            if self.memory.scratch.staged_lane != Some(self.lane) {
                pack_scaled(&mut self.memory, &self.arithmetic, chunks, bytes);
                self.memory.scratch.staged_lane = Some(self.lane);
            }
            let staging = Source::from(&self.memory.scratch.staging[..bytes]);
            link.try_send(self.lane, &self.tag, bytes, &mut std::iter::once(staging))?
        } else {
            let mut parts = chunks.iter().map(|&chunk| self.memory.source(chunk));
            link.try_send(self.lane, &self.tag, bytes, &mut parts)?
        };
        if !sent {
            return Ok(InstrPoll::Blocked(peer));
        }
        self.memory.scratch.staged_lane = None;
        Ok(InstrPoll::Done)
    }

    pub(super) fn recv(&mut self, peer: Rank, target_chunks: &[Chunk]) -> Result<InstrPoll> {
        let link = link(self.links, peer)?;
        let Some(bytes) = match_header(link, self.lane, &self.tag, self.rank, peer)? else {
            return Ok(InstrPoll::Blocked(peer));
        };
        let scratch_bytes = scratch_chunk_bytes(&self.memory, target_chunks, bytes, peer, self.rank)?;
        // A single chunk is in one piece, so the link can move the body there without a copy in
        // between.
        if let [chunk] = target_chunks {
            let target = self.memory.target(*chunk, bytes);
            if !link.recv_into(self.lane, target)? {
                return Ok(InstrPoll::Blocked(peer));
            }
            self.traffic.add_bytes(bytes);
            return Ok(InstrPoll::Done);
        }
        let Some(body) = link.body(self.lane)? else {
            return Ok(InstrPoll::Blocked(peer));
        };
        let mut offset = 0;
        for &chunk in target_chunks {
            let bytes =
                if StepMemory::is_user_buffer(chunk) { self.memory.bytes(chunk) } else { scratch_bytes };
            copy_to(Store::Cached, self.memory.target(chunk, bytes), body.slice(offset..offset + bytes));
            offset += bytes;
        }
        link.release(self.lane);
        self.traffic.add_bytes(offset);
        Ok(InstrPoll::Done)
    }

    pub(super) fn recv_reduce(
        &mut self,
        peer: Rank,
        operand_chunks: &[Chunk],
        target_chunks: &[Chunk],
        finish: bool,
    ) -> Result<InstrPoll> {
        let link = link(self.links, peer)?;
        let Some(bytes) = match_header(link, self.lane, &self.tag, self.rank, peer)? else {
            return Ok(InstrPoll::Blocked(peer));
        };
        let expected = operand_chunks.iter().map(|&chunk| self.memory.bytes(chunk)).sum();
        if bytes != expected {
            return Err(count_mismatch(peer, bytes, self.rank, expected));
        }
        let Some(body) = link.body(self.lane)? else {
            return Ok(InstrPoll::Blocked(peer));
        };
        let mut offset = 0;
        for (&operand, &target) in operand_chunks.iter().zip(target_chunks) {
            let bytes = self.memory.bytes(operand);
            let arrived = body.slice(offset..offset + bytes);
            reduce_received(&mut self.memory, &self.arithmetic, operand, target, arrived, finish);
            offset += bytes;
        }
        link.release(self.lane);
        self.traffic.add_bytes(offset);
        Ok(InstrPoll::Done)
    }
}

/// Returns the link to `peer`.
#[inline]
pub(in crate::engine) fn link(links: &mut [Option<Box<dyn Link>>], peer: Rank) -> Result<&mut dyn Link> {
    match links.get_mut(peer) {
        Some(Some(link)) => Ok(&mut **link),
        _ => Err(Error::new(ErrorKind::Bug(format!("there is no link to rank {peer}")))),
    }
}

/// Returns the bytes of the next message once it has arrived. Fails if its tag is not the expected
/// one.
pub(in crate::engine) fn match_header(
    link: &mut dyn Link,
    lane: usize,
    expected: &Tag,
    rank: Rank,
    peer: Rank,
) -> Result<Option<usize>> {
    match link.header(lane)? {
        None => Ok(None),
        Some(head) if head.tag == *expected => Ok(Some(head.bytes)),
        Some(head) => Err(tag_mismatch(expected, &head.tag, rank, peer)),
    }
}

/// Checks the length of a message for `target_chunks` and returns the length of each of its scratch
/// chunks.
///
/// Chunks of user buffers have known lengths. The rest of the message is divided evenly, because
/// all chunks are equally long where an algorithm keeps whole shares in scratch.
pub(in crate::engine) fn scratch_chunk_bytes(
    memory: &StepMemory<'_, '_>,
    target_chunks: &[Chunk],
    bytes: usize,
    peer: Rank,
    rank: Rank,
) -> Result<usize> {
    let user = target_chunks.iter().filter(|&&chunk| StepMemory::is_user_buffer(chunk));
    let known: usize = user.clone().map(|&chunk| memory.bytes(chunk)).sum();
    let unknown = target_chunks.len() - user.count();
    let each = bytes.saturating_sub(known).checked_div(unknown).unwrap_or(0);
    if known + each * unknown != bytes || each > memory.slice_bytes {
        return Err(count_mismatch(peer, bytes, rank, known));
    }
    Ok(each)
}
