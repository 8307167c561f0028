//! How ranks on GPUs meet: each tells the others of its GPU and its arena, and opens theirs.

use super::enqueue::State;
use super::order::agree_on_order;
use super::progress::Progress;
use super::pump::pump;
use super::replay::Replay;
use super::residency::{self, Seats};
use super::watch::watch;
use super::{DeviceCommunicator, Owner, Shared};
use crate::communicator::Communicator;
use crate::config::{Config, GpuSizes};
use crate::error::{Error, ErrorKind, Result};
use crate::reduction::Reduction;
use crate::rendezvous::host_identity;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use unisono_cuda::device::{Gpu, IpcHandle};
use unisono_transports::p2p::{Arena, Endpoint, Layout, Peer, Reached, Sizes, Stage};

pub(super) fn join(communicator: &Communicator, gpu: &Gpu) -> Result<DeviceCommunicator> {
    let base = communicator.duplicate()?;
    agree_on_sizes(&base)?;
    let room = agree(&base, Endpoint::residents(gpu).map_err(Error::from))?;
    let channels = agree_on_channels(&base, gpu, room)?;
    let wide_lines = agree_on_lines(&base, gpu)?;
    let arena = found(&base, gpu, (channels, wide_lines), room);
    let (arena, seats) = agree(&base, arena)?;
    let peers = peers(&base, &arena);
    let peers = agree(&base, peers)?;
    let carrier = carrier(&base, &peers, channels)?;
    // Everybody hears of a rank that cannot.
    let endpoint = agree(&base, Endpoint::new(arena, peers, carrier.is_none()).map_err(Error::from))?;
    let order = agree_on_order(&base, endpoint.arena().gpu())?;
    let bells = [Arc::default(), Arc::default()];
    let state = Mutex::<State>::default();
    let shared = Arc::new(Shared {
        base,
        endpoint,
        order,
        state,
        progress: Progress::default(),
        bells,
        _seats: seats,
    });
    shared.lock().replay = Some(Arc::new(Replay { shared: Arc::downgrade(&shared) }));
    let mut owner = Owner { shared, pump: None };
    let threads =
        watch(&owner.shared).and_then(|()| carrier.map(|carrier| pump(&owner.shared, carrier)).transpose());
    owner.pump = agree(&owner.base, threads)?;
    Ok(DeviceCommunicator { shared: Arc::new(owner) })
}

/// An error unless the settings of all ranks are alike: each computes where things are in the memory of the others.
fn agree_on_sizes(base: &Communicator) -> Result<()> {
    let GpuSizes { channels, slots, slot_bytes, window_bytes, peer_to_peer, wide_lines } = base.config().gpu;
    let switches = [peer_to_peer, wide_lines].map(usize::from);
    let own = [channels, slots, slot_bytes, window_bytes, switches[0], switches[1]].map(|size| size as u64);
    let mut all = [0; NAMES.len()].repeat(base.ranks());
    base.all_gather(&own, &mut all)?;
    let (first, others) = all.split_at(NAMES.len());
    for (rank, theirs) in others.chunks(NAMES.len()).enumerate() {
        if let Some(at) = (0..NAMES.len()).find(|&at| theirs[at] != first[at]) {
            let (name, rank) = (NAMES[at], rank + 1);
            let text = format!(
                "{name} is {} on rank 0 and {} on rank {rank}: ranks on GPUs need the same settings",
                first[at], theirs[at]
            );
            return Err(base.place(Error::misuse(text)));
        }
    }
    Ok(())
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

/// Whether lines are wide: if they are to be, and the GPUs of all ranks have kernels that know them.
fn agree_on_lines(base: &Communicator, gpu: &Gpu) -> Result<bool> {
    let mut wide = [u8::from(base.config().gpu.wide_lines && gpu.has_wide_lines())];
    base.all_reduce(&mut wide, Reduction::Min)?;
    tracing::debug!(target: "device", wide = wide[0] != 0, "lines");
    Ok(wide[0] != 0)
}

/// Takes room for the blocks, and makes the arena.
fn found(
    base: &Communicator,
    gpu: &Gpu,
    (channels, wide_lines): (usize, bool),
    room: usize,
) -> Result<(Arena, Seats)> {
    // A group sends to and receives from every other rank at once.
    let blocks = (channels * BLOCKS_PER_CHANNEL).max(2 * base.ranks() - 1);
    let seats = Seats::take(gpu, blocks, room)?;
    let sizes = base.config().gpu;
    let layout = Layout::new(Sizes {
        ranks: base.ranks(),
        channels,
        slots: sizes.slots,
        slot_bytes: sizes.slot_bytes,
        low_bytes: LOW_BYTES,
        window_bytes: sizes.window_bytes,
        wide_lines,
    })?;
    Ok((Arena::new(gpu, base.rank(), layout)?, seats))
}

/// How each rank is reached: directly where both reach each other, by way of the host elsewhere.
fn peers(base: &Communicator, arena: &Arena) -> Result<Vec<Peer>> {
    let mut reached = both(base, reach(base, arena)?)?;
    let limit = base.config().timeout.min(TRIAL_LIMIT);
    let right = agree(base, arena.try_links(&reached, limit).map_err(Error::from))?;
    for (rank, reached) in reached.iter_mut().enumerate().filter(|(rank, _)| !right[*rank]) {
        if reached.take().is_some() {
            tracing::warn!(target: "device", "the link between ranks {} and {rank} is broken: by way of the host", base.rank());
        }
    }
    let rank = base.rank();
    let peer = |(peer, reached): (usize, Option<Reached>)| match reached {
        _ if peer == rank => Ok(Peer::Own),
        Some(reached) => Ok(Peer::Direct(reached)),
        None => {
            let stage = Stage::new(arena.gpu(), peer, arena.layout().sizes())?;
            Ok(Peer::Staged(Arc::new(Mutex::new(stage))))
        }
    };
    both(base, reached)?.into_iter().enumerate().map(peer).collect()
}

/// Leaves those that reach this rank as well.
fn both(base: &Communicator, mut reached: Vec<Option<Reached>>) -> Result<Vec<Option<Reached>>> {
    let own: Vec<u8> = reached.iter().map(|peer| peer.is_some().into()).collect();
    let mut all = vec![0u8; own.len() * base.ranks()];
    base.all_gather(&own, &mut all)?;
    for (rank, theirs) in all.chunks(own.len()).enumerate() {
        if theirs[base.rank()] == 0 {
            reached[rank] = None;
        }
    }
    Ok(reached)
}

/// Exchanges handles, and opens those of all others that can be opened.
fn reach(base: &Communicator, arena: &Arena) -> Result<Vec<Option<Reached>>> {
    let place = [host_number(), u64::from(std::process::id()), arena.gpu().ordinal() as u64];
    let mut card: Vec<u8> = place.iter().flat_map(|word| word.to_le_bytes()).collect();
    // What cannot be exported, nobody reaches.
    let handle = arena.export().map(|handle| handle.to_bytes());
    card.extend(handle.as_ref().unwrap_or(&[0; IpcHandle::BYTES]));
    card.push(u8::from(handle.is_ok() && base.config().gpu.peer_to_peer));
    let mut all = vec![0u8; card.len() * base.ranks()];
    base.all_gather(&card, &mut all)?;
    let open = |(rank, card): (usize, &[u8])| {
        if rank == base.rank() || card.last() == Some(&0) {
            return None;
        }
        let (words, rest) = card.split_at(size_of_val(&place));
        let theirs: Vec<u64> = words
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()))
            .collect();
        let opened = open(arena, place, &theirs, IpcHandle::from_bytes(rest.first_chunk()?));
        opened
            .inspect_err(|why| tracing::info!(target: "device", "rank {rank} by way of the host: {why}"))
            .ok()
    };
    Ok(all.chunks(card.len()).enumerate().map(open).collect())
}

/// Opens the arena of a rank that is `theirs`: its host, its process, the number of its GPU there.
fn open(arena: &Arena, own: [u64; 3], theirs: &[u64], handle: IpcHandle) -> Result<Reached> {
    if theirs[0] != own[0] {
        return Err(Error::new(ErrorKind::Unavailable("it is on another host".to_owned())));
    }
    if theirs[1] == own[1] {
        arena.gpu().enable_peer(&Gpu::open(theirs[2] as usize)?)?;
    }
    Ok(arena.reach(&handle)?)
}

/// A communicator whose links carry what is staged, if any rank has something to be staged.
fn carrier(base: &Communicator, peers: &[Peer], channels: usize) -> Result<Option<Communicator>> {
    let staged = peers.iter().any(|peer| matches!(peer, Peer::Staged(_)));
    let mut any = [u8::from(staged)];
    base.all_reduce(&mut any, Reduction::Max)?;
    if any[0] == 0 {
        return Ok(None);
    }
    let config = base.config();
    let slot_bytes = (config.gpu.slot_bytes + HEADS_BYTES).next_multiple_of(4096);
    let (window_bytes, heap_bytes) = (1 << 16, 0);
    base.duplicate_with(&Config { channels, slot_bytes, window_bytes, heap_bytes, ..config.clone() })
        .map(Some)
}

/// This rank's result, if all ranks have one; else the error of one that has none.
pub(super) fn agree<T>(base: &Communicator, ended: Result<T>) -> Result<T> {
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

/// The settings that ranks compare, in the order of [`GpuSizes`].
const NAMES: [&str; 6] = [
    "UNISONO_GPU_CHANNELS",
    "UNISONO_GPU_SLOTS",
    "UNISONO_GPU_SLOT_BYTES",
    "UNISONO_GPU_WINDOW_BYTES",
    "UNISONO_GPU_P2P",
    "UNISONO_GPU_WIDE_LINES",
];
/// A program has two strands at most.
const BLOCKS_PER_CHANNEL: usize = 2;
/// Data of a message whose words have flags.
const LOW_BYTES: usize = 4 << 10;
/// For each wait of a link's trial.
const TRIAL_LIMIT: Duration = Duration::from_secs(10);
/// More than the head of a message.
const HEADS_BYTES: usize = 256;
/// Room for what a rank that cannot go on says of it.
const FAILURE_BYTES: usize = 256;
