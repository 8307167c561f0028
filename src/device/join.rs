//! Connects ranks on GPUs. Each rank tells the others about its GPU and its arena, and opens their
//! arenas.

use super::{DeviceCommunicator, Owner, Shared};
use crate::communicator::Communicator;
use crate::config::{Config, DeviceConfig};
use crate::device::graph::CommReplayHook;
use crate::device::launch::CommState;
use crate::device::launch_state::LaunchState;
use crate::device::monitor::spawn_monitor;
use crate::device::occupancy::BlockReservation;
use crate::device::placement::{BLOCKS_PER_CHANNEL, Placement, Placements, time_slice_warning};
use crate::device::plan;
use crate::device::proxy::spawn_proxy;
use crate::device::topology::{Locations, agree_on_order};
use crate::error::{Error, ErrorKind, Result};
use crate::reduce_op::ReduceOp;
use std::sync::{Arc, Mutex, Once};
use std::time::Duration;
use unisono_cuda::device::{Gpu, GpuError, IpcHandle, MemoryRef, StreamFollower};
use unisono_transports::gpu::{
    DeviceGeometry, Endpoint, HostStaging, Layout, MappedPeerMemory, Peer, PeerMemory, Reach,
};
use unisono_transports::text::printable;

pub(super) fn join(communicator: &Communicator, gpu: &Gpu) -> Result<DeviceCommunicator> {
    let base = communicator.duplicate()?;
    base.leave_only_by_drop();
    agree_on_sizes(&base)?;
    let room = agree_on_success(&base, Endpoint::max_resident_blocks(gpu).map_err(Error::from))?;
    let Blocks { placements, channels, reservation } = reserve_blocks(&base, gpu, room)?;
    warn_of_time_slices(gpu, &placements);
    let locations = Locations::exchange(&base, gpu)?;
    let wide_lines = agree_on_ll128(&base, gpu, &placements, &locations)?;
    let arena = create_arena(&base, gpu, channels, wide_lines);
    let arena = agree_on_success(&base, arena)?;
    // The guard comes before all that opens memory of peers, so after an error it is dropped last.
    let export = ExportGuard::new(&base, &arena, &placements);
    let peers = connect_peers(&base, &arena, &placements);
    let peers = agree_on_success(&base, peers)?;
    let reach = agree_on_reach(&base, &peers)?;
    let carrier = agree_on_success(&base, relay_comm(&base, &reach, arena.layout().geometry()))?;
    // All ranks learn of a rank that fails here.
    let endpoint = agree_on_success(&base, make_endpoint(arena, peers, reach))?;
    let follower =
        agree_on_success(&base, StreamFollower::new(endpoint.memory().gpu()).map_err(Error::from))?;
    let order = agree_on_order(&base, endpoint.memory().gpu(), &locations)?;
    export.keep();
    let notifiers = [Arc::default(), Arc::default()];
    let state = Mutex::<CommState>::default();
    let shared = Arc::new(Shared {
        host_comm: base,
        endpoint,
        ring_order: order,
        state,
        launch_state: LaunchState::default(),
        follower,
        notifiers,
        _blocks: reservation,
    });
    // Graphs may outlive the communicator, so their hook refers to it weakly.
    shared.lock().replay_hook = Some(Arc::new(CommReplayHook { shared: Arc::downgrade(&shared) }));
    // The owner comes before its threads. If a thread of any rank cannot be started, the drop of
    // the owner ends those that run.
    let mut owner = Owner { shared, monitor: None, proxy: None };
    let started = start_threads(&mut owner, carrier);
    agree_on_success(&owner.host_comm, started)?;
    Ok(DeviceCommunicator { shared: Arc::new(owner) })
}

/// Starts the monitor thread, and the proxy thread if messages move through the host.
fn start_threads(owner: &mut Owner, carrier: Option<Communicator>) -> Result<()> {
    owner.monitor = Some(spawn_monitor(&owner.shared)?);
    owner.proxy = carrier.map(|carrier| spawn_proxy(&owner.shared, carrier)).transpose()?;
    Ok(())
}

/// The export of this rank's arena while ranks join. If they fail, the drop of the guard ends the
/// export. Without that, the memory would be neither reused nor freed.
struct ExportGuard<'c> {
    base: &'c Communicator,
    memory: MemoryRef,
    /// True if no other process can have the arena open.
    is_local: bool,
    is_kept: bool,
}

impl<'c> ExportGuard<'c> {
    fn new(base: &'c Communicator, arena: &PeerMemory, placements: &Placements) -> Self {
        let (memory, is_local) = (arena.memory_ref(), placements.are_in_one_process());
        Self { base, memory, is_local, is_kept: false }
    }

    /// Leaves the export to the communicator that the ranks have made.
    fn keep(mut self) {
        self.is_kept = true;
    }

    /// Returns true if no other process accesses the arena any more.
    fn is_closed_elsewhere(&self) -> bool {
        // All ranks fail together and come to the barrier, after they have closed what they had
        // opened. If `base` itself has failed, a rank may still run its link test, so the memory
        // stays.
        self.is_local || !std::thread::panicking() && self.base.barrier().is_ok()
    }
}

impl Drop for ExportGuard<'_> {
    fn drop(&mut self) {
        if !self.is_kept && self.is_closed_elsewhere() {
            self.memory.withdraw();
        }
    }
}

/// Returns an error unless all ranks have the same settings. Each rank computes addresses in the
/// memory of the others from them.
fn agree_on_sizes(base: &Communicator) -> Result<()> {
    let DeviceConfig {
        channels,
        fifo_depth: slots,
        fifo_slot_bytes: slot_bytes,
        window_bytes,
        peer_to_peer,
        ll128: wide_lines,
        // These two settings may differ between ranks.
        timeout: _,
        launch: _,
    } = base.config().gpu;
    let switches = [peer_to_peer, wide_lines].map(usize::from);
    let own_settings =
        [channels, slots, slot_bytes, window_bytes, switches[0], switches[1]].map(|size| size as u64);
    let mut settings = [0; COMPARED_SETTINGS.len()].repeat(base.size());
    base.all_gather(&own_settings, &mut settings)?;
    let (first, others) = settings.split_at(COMPARED_SETTINGS.len());
    for (rank, theirs) in others.chunks(COMPARED_SETTINGS.len()).enumerate() {
        if let Some(index) = (0..COMPARED_SETTINGS.len()).find(|&index| theirs[index] != first[index]) {
            let (name, rank) = (COMPARED_SETTINGS[index], rank + 1);
            let text = format!(
                "{name} is {} on rank 0 and {} on rank {rank}: ranks on GPUs need the same settings",
                first[index], theirs[index]
            );
            return Err(base.attach_rank(Error::invalid_usage(text)));
        }
    }
    Ok(())
}

/// The blocks of a rank on its GPU. All ranks agree on the placements and the channels.
struct Blocks {
    placements: Placements,
    channels: usize,
    reservation: BlockReservation,
}

/// Reserves this rank's blocks on its GPU.
fn reserve_blocks(base: &Communicator, gpu: &Gpu, room: usize) -> Result<Blocks> {
    let mut attempt = 0;
    loop {
        let placement = Placement::own(gpu, room, base.config().gpu.channels);
        // If the driver of a rank does not report the place of its GPU, all ranks learn of this.
        let placements = Placements::exchange(base, &agree_on_success(base, placement)?)?;
        placements.check_queues().map_err(|error| base.attach_rank(refuse(error)))?;
        // Other communicators that join at the same time may have taken the blocks since the
        // exchange. Every attempt requests fewer blocks, so that all communicators get some.
        let channels = (placements.channels() >> attempt).max(1);
        let reserved = BlockReservation::reserve(gpu, channels * BLOCKS_PER_CHANNEL, placements.room());
        match agree_on_success(base, reserved) {
            Ok(reservation) => return Ok(Blocks { placements, channels, reservation }),
            Err(error) if attempt == RESERVE_ATTEMPTS => return Err(error),
            Err(_) => attempt += 1,
        }
    }
}

/// Returns the error of ranks that a GPU cannot serve, although nothing is wrong with it.
fn refuse(error: GpuError) -> Error {
    Error::new(ErrorKind::Unsupported(error.to_string())).with_source(error)
}

/// Warns once in a process that processes slow each other down on a GPU without MPS. One rank of
/// each GPU does so.
fn warn_of_time_slices(gpu: &Gpu, placements: &Placements) {
    static ONCE: Once = Once::new();
    if let Some(processes) = placements.processes_to_report().filter(|&processes| processes > 1)
        && !gpu.is_shared_by_mps()
    {
        ONCE.call_once(|| tracing::warn!(target: "device", "{}", time_slice_warning(gpu, processes)));
    }
}

/// Returns true if all ranks use LL128 lines. The settings must ask for them, and the GPUs of all
/// ranks must have kernels that support them. All paths must be NVLinks, or lie within a GPU: PCIe
/// may divide a store of 16 bytes.
fn agree_on_ll128(
    base: &Communicator,
    gpu: &Gpu,
    placements: &Placements,
    locations: &Locations,
) -> Result<bool> {
    let placement = placements.of(base.rank());
    let carries = |rank| placement.is_on_same_gpu(placements.of(rank)) || locations.is_linked(gpu, rank);
    let supported = base.config().gpu.ll128 && gpu.has_ll128();
    let mut wide = [u8::from(supported && (0..base.size()).all(carries))];
    base.all_reduce(&mut wide, ReduceOp::Min)?;
    tracing::debug!(target: "device", wide = wide[0] != 0, "lines");
    Ok(wide[0] != 0)
}

/// Creates the arena. Messages are shorter than the settings say where many ranks would need too
/// much memory for them.
fn create_arena(base: &Communicator, gpu: &Gpu, channels: usize, wide_lines: bool) -> Result<PeerMemory> {
    let sizes = base.config().gpu;
    let geometry = DeviceGeometry {
        ranks: base.size(),
        channels,
        slots: sizes.fifo_depth,
        slot_bytes: sizes.fifo_slot_bytes,
        ll_bytes: LL_BYTES,
        window_bytes: sizes.window_bytes,
        ll128: wide_lines,
    };
    Ok(PeerMemory::new(gpu, base.rank(), Layout::new(geometry.fit())?)?)
}

/// Makes the endpoint, with all memory that launches of its ranks need.
fn make_endpoint(arena: PeerMemory, peers: Vec<Peer>, reach: Reach) -> Result<Endpoint> {
    let reserve = plan::reserve(arena.layout().geometry());
    Ok(Endpoint::new(arena, peers, reach, reserve)?)
}

/// Connects to each rank. The connection is direct if both ranks reach each other, and goes through
/// the host otherwise.
fn connect_peers(base: &Communicator, arena: &PeerMemory, placements: &Placements) -> Result<Vec<Peer>> {
    let mut reached = keep_mutual(base, exchange_handles(base, arena, placements)?)?;
    let right = test_links(base, arena, &mut reached)?;
    for (rank, reached) in reached.iter_mut().enumerate().filter(|(rank, _)| !right[*rank]) {
        if reached.take().is_some() {
            tracing::warn!(target: "device", "the link between ranks {} and {rank} is broken: by way of the host", base.rank());
        }
    }
    let rank = base.rank();
    let peer = |(peer, reached): (usize, Option<MappedPeerMemory>)| match reached {
        _ if peer == rank => Ok(Peer::Local),
        Some(reached) => Ok(Peer::Direct(reached)),
        None => {
            let stage = HostStaging::new(arena.gpu(), peer, arena.layout().geometry())?;
            Ok(Peer::Staged(Arc::new(Mutex::new(stage))))
        }
    };
    // A test may fail at one end of a link only, and both ends have to give the link up.
    keep_mutual(base, reached)?.into_iter().enumerate().map(peer).collect()
}

/// Tests the links to all ranks of `reached`. Returns, by rank, true if the link works.
///
/// A test runs a block for each peer. Peers at the same distance in rank numbers are tested
/// together, as many at once as there are reserved blocks. Both ends of a link have the same
/// distance, so they test it in the same turn.
fn test_links(
    base: &Communicator,
    arena: &PeerMemory,
    reached: &mut [Option<MappedPeerMemory>],
) -> Result<Vec<bool>> {
    let (rank, ranks) = (base.rank(), base.size());
    let limit = base.config().timeout.min(LINK_TEST_TIMEOUT);
    let distance = |peer: usize| rank.abs_diff(peer).min(ranks - rank.abs_diff(peer));
    let at_once = arena.layout().geometry().channels * BLOCKS_PER_CHANNEL / PEERS_PER_DISTANCE;
    let mut right = vec![false; ranks];
    for first in (1..=ranks / 2).step_by(at_once) {
        let is_tested = |peer| (first..first + at_once).contains(&distance(peer));
        let take = |(peer, reached): (usize, &mut Option<_>)| {
            if is_tested(peer) { reached.take() } else { None }
        };
        let tested: Vec<_> = reached.iter_mut().enumerate().map(take).collect();
        // All ranks have their memory for the test before a kernel of one of them waits for others.
        let test = agree_on_success(base, arena.prepare_link_test(&tested).map_err(Error::from))?;
        let found = test.as_ref().map(|test| test.run(limit)).transpose().map_err(Error::from);
        let found = agree_on_success(base, found)?.unwrap_or_else(|| vec![true; ranks]);
        // All ranks have ended the test, so no kernel uses its memory any more.
        drop(test);
        for (peer, tested) in tested.into_iter().enumerate().filter(|(peer, _)| is_tested(*peer)) {
            (reached[peer], right[peer]) = (tested, found[peer]);
        }
    }
    Ok(right)
}

/// Keeps the ranks that reach this rank as well.
fn keep_mutual(
    base: &Communicator,
    mut reached: Vec<Option<MappedPeerMemory>>,
) -> Result<Vec<Option<MappedPeerMemory>>> {
    let own_row: Vec<u8> = reached.iter().map(|peer| peer.is_some().into()).collect();
    let mut rows = vec![0u8; own_row.len() * base.size()];
    base.all_gather(&own_row, &mut rows)?;
    for (rank, theirs) in rows.chunks(own_row.len()).enumerate() {
        if theirs[base.rank()] == 0 {
            reached[rank] = None;
        }
    }
    Ok(reached)
}

/// Exchanges handles, and opens those of all other ranks that can be opened.
fn exchange_handles(
    base: &Communicator,
    arena: &PeerMemory,
    placements: &Placements,
) -> Result<Vec<Option<MappedPeerMemory>>> {
    let placement = placements.of(base.rank());
    let place = [placement.host, placement.process, arena.gpu().ordinal() as u64];
    let mut card: Vec<u8> = place.iter().flat_map(|word| word.to_le_bytes()).collect();
    // If an arena cannot be exported, no rank can reach it.
    let handle = arena.export().map(|handle| handle.to_bytes());
    card.extend(handle.as_ref().unwrap_or(&[0; IpcHandle::BYTES]));
    card.push(u8::from(handle.is_ok() && base.config().gpu.peer_to_peer));
    let mut cards = vec![0u8; card.len() * base.size()];
    base.all_gather(&card, &mut cards)?;
    let open = |(rank, card): (usize, &[u8])| {
        if rank == base.rank() || card.last() == Some(&0) {
            return None;
        }
        let (words, handle_bytes) = card.split_at(size_of_val(&place));
        let theirs: Vec<u64> = words
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()))
            .collect();
        let opened =
            open_peer_arena(arena, place, &theirs, IpcHandle::from_bytes(handle_bytes.first_chunk()?));
        opened
            .inspect_err(|why| tracing::info!(target: "device", "rank {rank} by way of the host: {why}"))
            .ok()
    };
    Ok(cards.chunks(card.len()).enumerate().map(open).collect())
}

/// Opens the arena of the rank at `theirs`, which has its host, its process, and the number of its
/// GPU on that host.
fn open_peer_arena(
    arena: &PeerMemory,
    own_place: [u64; 3],
    theirs: &[u64],
    handle: IpcHandle,
) -> Result<MappedPeerMemory> {
    if theirs[0] != own_place[0] {
        return Err(Error::new(ErrorKind::Unsupported("it is on another host".to_owned())));
    }
    if theirs[1] == own_place[1] {
        arena.gpu().enable_peer_access(&Gpu::open(theirs[2] as usize)?)?;
    }
    Ok(arena.map(&handle)?)
}

/// Returns which ranks reach each other.
fn agree_on_reach(base: &Communicator, peers: &[Peer]) -> Result<Reach> {
    let own_row: Vec<u8> = peers.iter().map(|peer| u8::from(!matches!(peer, Peer::Staged(_)))).collect();
    let mut rows = vec![0; own_row.len() * base.size()];
    base.all_gather(&own_row, &mut rows)?;
    Ok(Reach::from_rows(base.size(), &rows))
}

/// Makes a communicator whose links carry staged messages, if any rank has such messages.
fn relay_comm(base: &Communicator, reach: &Reach, sizes: &DeviceGeometry) -> Result<Option<Communicator>> {
    if reach.is_complete() {
        return Ok(None);
    }
    let config = base.config();
    // A message of a GPU travels with its header as one message of the link.
    let slot_bytes = (sizes.slot_bytes + HEADER_BYTES_MAX).next_multiple_of(4096);
    let (window_bytes, heap_bytes) = (1 << 16, 0);
    let relay = Config {
        channels: sizes.channels,
        fifo_slot_bytes: slot_bytes,
        shm_window_bytes: window_bytes,
        symmetric_heap_bytes: heap_bytes,
        ..config.clone()
    };
    let relay = base.child().config(&relay).duplicate()?;
    relay.leave_only_by_drop();
    Ok(Some(relay))
}

/// Returns this rank's result if all ranks succeeded. Otherwise returns the error of a rank that
/// failed.
pub(super) fn agree_on_success<T>(base: &Communicator, ended: Result<T>) -> Result<T> {
    let mut failures = vec![0u8; ERROR_TEXT_BYTES * base.size()];
    let mut own_text = [0u8; ERROR_TEXT_BYTES];
    if let Err(error) = &ended {
        let text = error.kind().to_string();
        let bytes = text.len().min(ERROR_TEXT_BYTES);
        own_text[..bytes].copy_from_slice(&text.as_bytes()[..bytes]);
    }
    base.all_gather(&own_text, &mut failures)?;
    let value = ended?;
    let failed = failures.chunks(ERROR_TEXT_BYTES).enumerate().find(|(_, failure)| failure[0] != 0);
    match failed {
        Some((rank, failure)) => {
            let text = String::from_utf8_lossy(failure);
            let text = printable(text.trim_end_matches('\0'));
            let text = format!("rank {rank} cannot go on: {text}");
            Err(base.attach_rank(Error::new(ErrorKind::Unsupported(text))))
        }
        None => Ok(value),
    }
}

/// The settings that ranks compare, in the order of [`DeviceConfig`].
const COMPARED_SETTINGS: [&str; 6] = [
    "UNISONO_GPU_CHANNELS",
    "UNISONO_GPU_FIFO_DEPTH",
    "UNISONO_GPU_FIFO_SLOT_BYTES",
    "UNISONO_GPU_WINDOW_BYTES",
    "UNISONO_GPU_P2P",
    "UNISONO_GPU_LL128",
];
/// Number of further attempts to reserve blocks that other communicators have taken meanwhile.
const RESERVE_ATTEMPTS: u32 = 4;
/// Ranks at one distance from another: one on each side.
const PEERS_PER_DISTANCE: usize = 2;
/// Data bytes of a message in low-latency lines, whose words carry flags.
const LL_BYTES: usize = 4 << 10;
/// Time limit of each wait of a link test.
const LINK_TEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Upper bound of the bytes of a message header.
const HEADER_BYTES_MAX: usize = 256;
/// Bytes reserved for the error text of a rank that fails.
const ERROR_TEXT_BYTES: usize = 256;
