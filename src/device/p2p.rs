//! Sends and receives that are enqueued on a stream, one by one or together.

use crate::device::launch::LaunchKind;
use crate::device::p2p_program::{Transfer, TransferSizes, transfer_program};
use crate::device::{DeviceCommunicator, Shared};
use crate::engine::Direction;
use crate::error::{Error, Result};
use crate::op_desc::{OpDesc, OpKind};
use crate::schedule::Rank;
use std::collections::VecDeque;
use std::sync::Arc;
use unisono_cuda::device::{CaptureState, DeviceBuffer, DeviceBufferMut, Stream};
use unisono_reducers::{DType, Element, ReduceKind};
use unisono_transports::gpu::{
    DeviceProgram, LaunchParams, Operand, OperandMemory, Program, Protocol, Region, ShareTable, TypedRegion,
};

/// The sends and receives of a [`DeviceCommunicator::group`], which are carried out together.
#[derive(Default)]
pub struct DeviceGroup<'a> {
    entries: Vec<GroupEntry<'a>>,
}

struct GroupEntry<'a> {
    direction: Direction,
    peer: Rank,
    region: Box<dyn Region + 'a>,
}

impl<'a> DeviceGroup<'a> {
    /// Adds a send of `buffer` to `peer`, which must receive the same number of bytes.
    pub fn send<T: Element>(&mut self, buffer: &'a impl DeviceBuffer<T>, peer: Rank) -> &mut Self {
        self.entries.push(GroupEntry {
            direction: Direction::Send,
            peer,
            region: Box::new(TypedRegion(buffer)),
        });
        self
    }

    /// Adds a receive of `buffer` from `peer`, which must send the same number of bytes.
    pub fn recv<T: Element>(&mut self, buffer: &'a mut impl DeviceBufferMut<T>, peer: Rank) -> &mut Self {
        self.entries.push(GroupEntry {
            direction: Direction::Recv,
            peer,
            region: Box::new(TypedRegion(buffer)),
        });
        self
    }

    fn regions(&self, direction: Direction) -> Vec<&dyn Region> {
        let entries = self.entries.iter().filter(|entry| entry.direction == direction);
        entries.map(|entry| &*entry.region).collect()
    }

    fn addresses(&self) -> Vec<u64> {
        self.entries.iter().map(|entry| entry.region.address()).collect()
    }

    /// Checks that the sends of a rank to itself match its receives in length.
    fn check_self_transfers(&self, rank: Rank) -> Result<()> {
        let own_bytes = |direction| {
            let entries =
                self.entries.iter().filter(move |entry| entry.direction == direction && entry.peer == rank);
            entries.map(|entry| entry.region.bytes())
        };
        if own_bytes(Direction::Send).eq(own_bytes(Direction::Recv)) {
            return Ok(());
        }
        let text =
            "what a rank sends to itself it must receive in the same group, in the same order and lengths";
        Err(Error::invalid_usage(text))
    }

    fn transfers(&self) -> Vec<Transfer> {
        let transfer = |entry: &GroupEntry<'_>| Transfer {
            direction: entry.direction,
            peer: entry.peer,
            bytes: entry.region.bytes(),
        };
        self.entries.iter().map(transfer).collect()
    }
}

/// Cache of recently used groups.
#[derive(Default)]
pub(super) struct GroupCache(VecDeque<(GroupKey, Arc<UploadedGroup>)>);

/// The transfers and their addresses. Addresses are left out if they make no difference.
type GroupKey = (Vec<Transfer>, Vec<u64>);

impl GroupCache {
    /// Returns the cached group, or uploads it. `shares` gives the tables of the sends and
    /// receives.
    pub(super) fn get_or_upload(
        &mut self,
        shared: &Shared,
        transfers: Vec<Transfer>,
        addresses: Vec<u64>,
        shares: impl FnOnce() -> unisono_transports::Result<[ShareTable; 2]>,
    ) -> Result<Arc<UploadedGroup>> {
        let key = (transfers, addresses);
        if let Some((_, ready)) = self.0.iter().find(|(known, _)| *known == key) {
            return Ok(Arc::clone(ready));
        }
        let (endpoint, rank) = (&shared.endpoint, shared.host_comm.rank());
        let geometry = endpoint.memory().layout().geometry();
        let sizes = TransferSizes {
            rank,
            ranks: geometry.ranks,
            lane: geometry.lanes() - 1,
            width: geometry.channels,
            slice_bytes: geometry.slot_bytes,
        };
        let made = transfer_program(&key.0, sizes)?;
        let [sends, receives] = shares()?;
        let ready = Arc::new(UploadedGroup {
            uploaded: endpoint.upload(Program::new(made.tables, made.bounds)?, geometry.slot_bytes)?,
            sends,
            receives,
            slices: made.slices,
        });
        // The oldest group makes room. The memory of its tables is used again only after the
        // launches so far, because those may still read it.
        self.0.truncate(GROUP_CACHE_SIZE - 1);
        self.0.push_front((key, Arc::clone(&ready)));
        Ok(ready)
    }
}

/// A group that was uploaded to the GPU.
pub(super) struct UploadedGroup {
    pub(super) uploaded: DeviceProgram,
    pub(super) sends: ShareTable,
    pub(super) receives: ShareTable,
    pub(super) slices: usize,
}

impl DeviceCommunicator {
    /// Sends `buffer` to `peer`.
    ///
    /// The send blocks the stream while it waits for the receiver. Two ranks that both send to each
    /// other first must use [`DeviceCommunicator::group`].
    ///
    /// # Errors
    /// See [`DeviceCommunicator::all_reduce`].
    pub fn send<T: Element>(&self, stream: &Stream, buffer: &impl DeviceBuffer<T>, peer: Rank) -> Result<()> {
        self.group(stream, |group| {
            group.send(buffer, peer);
        })
    }

    /// Receives `buffer` from `peer`.
    ///
    /// # Errors
    /// See [`DeviceCommunicator::all_reduce`]. After an error, `buffer` is
    /// [unspecified](crate::Error#buffers-after-an-error).
    pub fn recv<T: Element>(
        &self,
        stream: &Stream,
        buffer: &mut impl DeviceBufferMut<T>,
        peer: Rank,
    ) -> Result<()> {
        self.group(stream, |group| {
            group.recv(buffer, peer);
        })
    }

    /// Carries out all sends and receives that `collect` adds. They run together, so no order among
    /// them can deadlock.
    ///
    /// Transfers between the same two ranks keep their order. Transfers with different ranks run at
    /// the same time if this rank sends to at most [`DeviceCommunicator::channels`] ranks, and
    /// receives from at most as many. In a larger group, a transfer may wait until this rank has
    /// finished its transfers with ranks at smaller distances. So each peer must receive the
    /// messages of a larger group in one group, and must not wait for a later group of this rank in
    /// between.
    ///
    /// # Errors
    /// See [`DeviceCommunicator::all_reduce`]. After an error, the receive buffers are
    /// [unspecified](crate::Error#buffers-after-an-error).
    pub fn group<'a>(&self, stream: &Stream, collect: impl FnOnce(&mut DeviceGroup<'a>)) -> Result<()> {
        let mut group = DeviceGroup::default();
        collect(&mut group);
        let base = &self.shared.host_comm;
        for entry in &group.entries {
            base.arg_check_unnumbered().require_rank("peer", entry.peer)?;
        }
        group.check_self_transfers(self.rank()).map_err(|error| base.attach_rank(error))?;
        if group.entries.is_empty() { Ok(()) } else { self.shared.enqueue_group(stream, &group) }
    }
}

impl Shared {
    fn enqueue_group(&self, stream: &Stream, group: &DeviceGroup<'_>) -> Result<()> {
        self.enqueue_with(|state| {
            let (sends, receives) = (group.regions(Direction::Send), group.regions(Direction::Recv));
            let (arena, addresses) = (self.endpoint.memory(), group.addresses());
            let shares =
                |parts| ShareTable::from_regions(&self.endpoint, parts, arena.layout().geometry().slot_bytes);
            let tables = || Ok([shares(&sends)?, shares(&receives)?]);
            // The tables of shares hold addresses, so a group of the same lengths with other
            // buffers needs other tables.
            let ready = state.groups.get_or_upload(self, group.transfers(), addresses, tables)?;
            let call = OpDesc::new(state.next_group_sequence(), OpKind::SendRecv, DType::U8, None, 0, 0)
                .on_gpu(None);
            let operand = |parts, shares| Operand {
                memory: OperandMemory::Regions { parts, shares },
                chunks_per_share: ready.slices,
                copied_from: None,
            };
            let (input, output) =
                (operand(&sends[..], &ready.sends), operand(&receives[..], &ready.receives));
            let work = LaunchKind::Program(&ready.uploaded);
            self.launch(state, stream, work, &self.group_launch_args(call), [&input, &output])?;
            Ok(call)
        })
    }

    pub(super) fn group_launch_args(&self, call: OpDesc) -> LaunchParams<'static> {
        let [sequence, what, count, _] = call.tag(0).0;
        LaunchParams {
            sequence,
            fingerprint: what,
            count,
            dtype: u8::DTYPE,
            op: ReduceKind::Sum,
            user_op: None,
            factor: None,
            divisor: 1,
            slice_bytes: self.endpoint.memory().layout().geometry().slot_bytes,
            slices: 1,
            channels: 1,
            protocol: Protocol::Simple,
            timeout: self.host_comm.config().gpu.timeout,
            capture: CaptureState::None,
            cooperative: self.is_cooperative(),
        }
    }
}

/// Maximum number of cached groups.
const GROUP_CACHE_SIZE: usize = 64;
