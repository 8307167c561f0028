//! Symmetric memory on GPUs. Collectives that all ranks call with it read and write it in place.

use crate::Config;
use crate::communicator::digest_words;
use crate::device::DeviceCommunicator;
use crate::device::join::agree_on_success;
use crate::device::launch::{CommState, PlannedOp};
use crate::device::op::{DeviceOp, OpBuffer};
use crate::device::shape::Shape;
use crate::error::{Error, Result};
use crate::reduce_op::ReduceOp;
use crate::schedule::{Algorithm, GroupSpec, PeerAccess};
use std::collections::VecDeque;
use std::sync::Arc;
use unisono_cuda::device::{Buffer, ImportedMemory, IpcHandle};
use unisono_reducers::{Element, ReduceKind};
use unisono_transports::gpu::{AddressTable, Endpoint, Operand, WindowSet};

/// The symmetric buffers of an operation, and the algorithm that accesses them.
pub(super) struct Registration {
    pub(super) algorithm: &'static Algorithm,
    /// Window sets of the input and of the output, if the program names those of peers.
    window_sets: [Option<Arc<WindowSet>>; 2],
    /// A digest of the positions in symmetric memory. It must be the same on all ranks.
    pub(super) offset_digest: u64,
}

/// The place of a buffer in symmetric memory.
struct WindowPlace {
    /// The number of the window set, in the order of the calls.
    index: usize,
    window_set: Arc<WindowSet>,
    /// Offset of the buffer in the memory of its rank, in bytes.
    offset: usize,
}

/// Cache of recently used tables of peers' buffers.
#[derive(Default)]
pub(super) struct AddressTables(VecDeque<(TableKey, Arc<AddressTable>)>);

/// The plan, and the address and share bytes of the two buffers.
type TableKey = (usize, [(u64, usize); 2]);

impl DeviceCommunicator {
    /// Allocates `count` zeros in memory of this rank's GPU that the other ranks can access.
    ///
    /// All ranks must call this method at the same time, with the same count. The result can be
    /// used like any other buffer. The call also closes symmetric buffers that all ranks have
    /// dropped and no work or graph uses. Their memory can then be used again.
    ///
    /// Large collectives access such buffers in place, without staging. *Every* rank must then pass
    /// a buffer of the same call of `alloc_symmetric`, at the same offset. Otherwise the operation
    /// is a mismatch. If GPUs cannot reach each other, the buffer is ordinary memory, so that
    /// programs run anywhere.
    ///
    /// If an operation has failed, kernels of other ranks may still write to its buffers until
    /// those kernels end. So go on with other buffers.
    ///
    /// # Errors
    /// Fails on every rank if one of them has too little memory, or if the counts differ. The
    /// communicator stays usable.
    pub fn alloc_symmetric<T: Element>(&self, count: usize) -> Result<Buffer<T>> {
        let (base, exports) = (&self.shared.host_comm, self.shared.endpoint.all_peers_direct());
        self.release_unused()?;
        let bytes = count.saturating_mul(size_of::<T>());
        let buffer = agree_on_success(base, self.gpu().alloc_exportable::<T>(count).map_err(Error::from))?;
        let handle = exports.then(|| buffer.export()).transpose().map_err(Error::from);
        // If a rank has no handle, no rank opens any buffer.
        let handle = agree_on_success(base, handle).inspect_err(|_| buffer.withdraw())?;
        let handle = handle.map_or([0; IpcHandle::BYTES], |handle| handle.to_bytes());
        let mut cards = vec![0u8; REGISTRATION_BYTES * self.size()];
        base.all_gather(&[&handle[..], &(bytes as u64).to_le_bytes()[..]].concat(), &mut cards)?;
        let handles = parse_handles(&cards, bytes).map_err(|error| {
            // No rank opens any buffer in this case.
            buffer.withdraw();
            base.attach_rank(error)
        })?;
        if exports {
            let opened = WindowSet::open(self.gpu(), self.rank(), &handles, bytes);
            let set = agree_on_success(base, opened.map_err(Error::from)).inspect_err(|_| {
                // Each rank has closed the buffers that it had opened. After the barrier, all ranks
                // have done so.
                if base.barrier().is_ok() {
                    buffer.withdraw();
                }
            })?;
            self.shared.lock().window_sets.push(Arc::new(set));
        }
        Ok(buffer)
    }

    /// Closes symmetric memory that no rank uses, and frees this rank's part. All ranks must call
    /// it at the same time.
    fn release_unused(&self) -> Result<()> {
        let base = &self.shared.host_comm;
        let mut unused = self.shared.lock().unused_windows();
        if unused.is_empty() {
            return Ok(());
        }
        base.all_reduce(&mut unused, ReduceOp::Min)?;
        let closed = self.shared.lock().close_windows(&unused);
        if closed.is_empty() {
            return Ok(());
        }
        // After the barrier, no rank has the memory open.
        base.barrier()?;
        closed.iter().for_each(ImportedMemory::withdraw);
        Ok(())
    }
}

/// Returns the handles of all ranks' buffers if all have equal sizes. Every rank gets the same
/// outcome.
pub(super) fn parse_handles(cards: &[u8], bytes: usize) -> Result<Vec<IpcHandle>> {
    let mut handles = Vec::new();
    for (rank, card) in cards.chunks(REGISTRATION_BYTES).enumerate() {
        let (handle, theirs) = card.split_at(IpcHandle::BYTES);
        let theirs = u64::from_le_bytes(theirs.try_into().unwrap_or_default());
        if theirs != bytes as u64 {
            let text =
                format!("rank {rank} asks for {theirs} bytes of symmetric memory, this rank for {bytes}");
            return Err(Error::invalid_usage(text));
        }
        handles.extend(handle.first_chunk().map(IpcHandle::from_bytes));
    }
    Ok(handles)
}

impl CommState {
    /// Returns 1 for each window set that this rank does not use, and 0 for the others.
    fn unused_windows(&mut self) -> Vec<u8> {
        self.address_tables.0.retain(|(_, table)| !table.is_abandoned());
        let unused = |set: &Arc<WindowSet>| Arc::strong_count(set) == 1 && set.is_unused();
        self.window_sets.iter().map(|set| unused(set).into()).collect()
    }

    /// Closes the window sets that no rank uses, and returns this rank's own memory of them.
    fn close_windows(&mut self, unused: &[u8]) -> Vec<ImportedMemory> {
        let sets = std::mem::take(&mut self.window_sets).into_iter().zip(unused);
        let (closed, kept): (Vec<_>, Vec<_>) = sets.partition(|(_, unused)| **unused == 1);
        self.window_sets = kept.into_iter().map(|(set, _)| set).collect();
        closed.into_iter().filter_map(|(set, _)| Arc::into_inner(set)).map(WindowSet::close).collect()
    }

    /// Returns the registration of an operation, if all peer buffers that its algorithm names are
    /// symmetric.
    pub(super) fn registration(
        &mut self,
        job: &DeviceOp<'_>,
        spec: &GroupSpec,
        bytes: usize,
        config: &Config,
    ) -> Option<Registration> {
        let large = bytes >= ZERO_COPY_MIN_BYTES && config.algorithm_override(job.collective).is_none();
        let fits = |row: &&Algorithm| row.peer_access == PeerAccess::ZeroCopy && (row.supports)(spec);
        let (row, shape) = match self.overrides[job.collective as usize] {
            Some(chosen) => fits(&chosen).then(|| (chosen, self.shapes.get(chosen, spec)))?,
            None if large => {
                let rows = Algorithm::ALL.iter().filter(|row| row.collective == job.collective).filter(fits);
                let shapes = &mut self.shapes;
                default_algorithm(rows.map(|row| (row, shapes.get(row, spec))), job)?
            }
            None => return None,
        };
        if !is_resolvable_by_all(&shape, job) {
            return None;
        }
        let sides = [(shape.accesses_peer_inputs, &job.input), (shape.accesses_peer_outputs, &job.output)];
        let mut places = Vec::new();
        let mut window_sets = [None, None];
        for ((is_named, side), set) in sides.into_iter().zip(&mut window_sets) {
            if is_named {
                let place = self.find_window_set(side)?;
                places.extend([place.index, place.offset]);
                *set = Some(place.window_set);
            }
        }
        Some(Registration { algorithm: row, window_sets, offset_digest: digest_words(&places) })
    }

    /// Returns where in symmetric memory a buffer is.
    fn find_window_set(&self, side: &OpBuffer<'_>) -> Option<WindowPlace> {
        let region = side.region?;
        let position = |(index, set): (usize, &Arc<WindowSet>)| {
            let offset = set.offset_of(region)? + side.offset;
            Some(WindowPlace { index, window_set: Arc::clone(set), offset })
        };
        self.window_sets.iter().enumerate().find_map(position)
    }
}

/// Returns the algorithm for symmetric buffers if the user has not chosen one. It is the first of
/// `rows` that needs no fact that only a peer knows.
fn default_algorithm(
    mut rows: impl Iterator<Item = (&'static Algorithm, Shape)>,
    job: &DeviceOp<'_>,
) -> Option<(&'static Algorithm, Shape)> {
    let only_peer_knows_input = job.collective.has_root() || is_pre_mul_sum(job);
    rows.find(|(_, shape)| !(only_peer_knows_input && shape.accesses_peer_inputs))
}

fn is_pre_mul_sum(job: &DeviceOp<'_>) -> bool {
    job.op.is_some_and(|reduction| reduction.kind() == ReduceKind::PreMulSum)
}

/// Returns true if every rank knows the facts about its peers that the algorithm needs.
///
/// The factors of a pre-multiplied sum are known only to their own ranks, so each rank must
/// multiply its input itself. This rounds small floats once more than other algorithms do. The
/// input of a root is known if it is the output of every rank.
fn is_resolvable_by_all(shape: &Shape, job: &DeviceOp<'_>) -> bool {
    let address = |side: &OpBuffer<'_>| side.region.map(|region| region.address());
    let rounds_again = job.dtype.is_float() && job.dtype.size() < size_of::<f32>();
    let has_root = job.collective.has_root();
    let knows_root = !shape.accesses_peer_inputs || !has_root || address(&job.input) == address(&job.output);
    let knows_factors = !is_pre_mul_sum(job) || !shape.accesses_peer_inputs && !rounds_again;
    knows_root && knows_factors
}

impl AddressTables {
    /// Returns the cached table of an operation with symmetric buffers, or makes it.
    pub(super) fn get(
        &mut self,
        endpoint: &Endpoint,
        planned: &PlannedOp<'_>,
        registration: &Registration,
        [input, output]: [&Operand<'_>; 2],
    ) -> Result<Arc<AddressTable>> {
        let &PlannedOp { job, plan, uploaded, .. } = planned;
        let side = |side: &OpBuffer<'_>| {
            (side.region.map_or(0, |region| region.address()) + side.offset as u64, side.share_bytes)
        };
        let key = (std::ptr::from_ref(plan) as usize, [side(&job.input), side(&job.output)]);
        if let Some((_, table)) = self.0.iter().find(|(known, _)| *known == key) {
            return Ok(Arc::clone(table));
        }
        let table =
            Arc::new(endpoint.address_table(uploaded, registration.window_sets.clone(), input, output)?);
        self.0.truncate(ADDRESS_TABLE_CACHE_SIZE - 1);
        self.0.push_front((key, Arc::clone(&table)));
        Ok(table)
    }
}

/// Bytes of a handle and of the buffer size beside it.
pub(super) const REGISTRATION_BYTES: usize = IpcHandle::BYTES + size_of::<u64>();
/// Maximum number of cached tables.
const ADDRESS_TABLE_CACHE_SIZE: usize = 64;
/// Smallest share for zero-copy. Smaller shares use lines or windows, which need one
/// synchronization less.
const ZERO_COPY_MIN_BYTES: usize = 64 << 10;
