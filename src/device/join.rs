//! How ranks on GPUs meet: each tells the others of its GPU and its arena, and opens theirs.

use super::enqueue::State;
use super::residency::{self, Seats};
use super::watch::{Bell, watch};
use super::{DeviceCommunicator, Shared};
use crate::communicator::Communicator;
use crate::error::{Error, ErrorKind, Result};
use crate::rendezvous::host_identity;
use std::sync::{Arc, Mutex};
use unisono_cuda::device::{Gpu, IpcHandle};
use unisono_transports::p2p::{Arena, Endpoint, Layout, Reached, Sizes};

pub(super) fn join(communicator: &Communicator, gpu: &Gpu) -> Result<DeviceCommunicator> {
    let base = communicator.duplicate()?;
    let room = Endpoint::residents(gpu)?;
    let channels = agree_on_channels(&base, gpu, room)?;
    let ended = found(&base, gpu, channels, room);
    // Everybody hears of a rank that cannot.
    let (endpoint, seats) = agree(&base, ended)?;
    let bell = Arc::<Bell>::default();
    let state = Mutex::<State>::default();
    let shared = Arc::new(Shared { base, endpoint, state, bell, _seats: seats });
    watch(&shared)?;
    Ok(DeviceCommunicator { shared })
}

/// The most channels with which all blocks of all ranks run at once: ranks of one process may share a GPU.
fn agree_on_channels(base: &Communicator, gpu: &Gpu, room: usize) -> Result<usize> {
    let wanted = base.config().gpu.channels;
    let (process, ordinal) = (u64::from(std::process::id()), gpu.ordinal() as u64);
    let own = [process, ordinal, host_number(), residency::free(gpu, room) as u64, wanted as u64];
    let mut all = vec![0; own.len() * base.ranks()];
    base.all_gather(&own, &mut all)?;
    let cards: Vec<&[u64]> = all.chunks(own.len()).collect();
    let channels = cards.iter().map(|card| {
        let sharing = cards.iter().filter(|other| other[..3] == card[..3]).count();
        (card[3] as usize / (sharing * BLOCKS_PER_CHANNEL)).min(card[4] as usize)
    });
    // Too few are said to be too few when seats are taken.
    Ok(channels.min().unwrap_or(1).max(1))
}

/// Takes room for the blocks, makes the arena and opens those of the others.
fn found(base: &Communicator, gpu: &Gpu, channels: usize, room: usize) -> Result<(Endpoint, Seats)> {
    // A group sends to and receives from every other rank at once.
    let blocks = (channels * BLOCKS_PER_CHANNEL).max(2 * base.ranks() - 1);
    let seats = Seats::take(gpu, blocks, room);
    let sizes = base.config().gpu;
    let layout = Layout::new(Sizes {
        ranks: base.ranks(),
        channels,
        slots: sizes.slots,
        slot_bytes: sizes.slot_bytes,
        low_bytes: LOW_BYTES,
        window_bytes: sizes.window_bytes,
    })?;
    let arena = seats.and_then(|seats| Ok((Arena::new(gpu, base.rank(), layout)?, seats)));
    let (arena, seats) = agree(base, arena)?;
    let reached = reach(base, &arena)?;
    Ok((Endpoint::new(arena, reached)?, seats))
}

/// Exchanges handles, and opens those of all others.
fn reach(base: &Communicator, arena: &Arena) -> Result<Vec<Option<Reached>>> {
    let handle = arena.export()?.to_bytes();
    let mut card = host_number().to_le_bytes().to_vec();
    card.extend(handle);
    let mut all = vec![0u8; card.len() * base.ranks()];
    base.all_gather(&card, &mut all)?;
    let open = |(rank, card): (usize, &[u8])| match card.split_first_chunk::<8>() {
        _ if rank == base.rank() => Ok(None),
        Some((host, rest)) if u64::from_le_bytes(*host) == host_number() => {
            let handle = rest.first_chunk().map(IpcHandle::from_bytes);
            let handle = handle.ok_or_else(|| Error::new(ErrorKind::Bug("a short card".to_owned())))?;
            Ok(Some(arena.reach(&handle)?))
        }
        _ => Ok(None),
    };
    all.chunks(card.len()).enumerate().map(open).collect()
}

/// This rank's result, if all ranks have one; else the error of one that has none.
fn agree<T>(base: &Communicator, ended: Result<T>) -> Result<T> {
    let mut failures = vec![0u8; FAILURE_BYTES * base.ranks()];
    let mut own = [0u8; FAILURE_BYTES];
    if let Err(error) = &ended {
        let text = error.kind().to_string();
        let bytes = text.len().min(FAILURE_BYTES);
        own[..bytes].copy_from_slice(&text.as_bytes()[..bytes]);
    }
    base.all_gather(&own, &mut failures)?;
    let own = ended?;
    let failed = failures.chunks(FAILURE_BYTES).enumerate().find(|(_, failure)| failure[0] != 0);
    match failed {
        Some((rank, failure)) => {
            let text = String::from_utf8_lossy(failure);
            let text = format!("rank {rank} cannot go on: {}", text.trim_end_matches('\0'));
            Err(base.place(Error::new(ErrorKind::Unavailable(text))))
        }
        None => Ok(own),
    }
}

/// Equal for ranks of one host.
fn host_number() -> u64 {
    let text = host_identity();
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// A program has two strands at most.
const BLOCKS_PER_CHANNEL: usize = 2;
/// Data of a message whose words have flags.
const LOW_BYTES: usize = 4 << 10;
/// Room for what a rank that cannot go on says of it.
const FAILURE_BYTES: usize = 256;
