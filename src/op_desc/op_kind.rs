//! The kinds of operations, and their codes in a tag.

use crate::schedule::Collective;

/// The kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OpKind {
    /// A collective that has algorithms.
    Collective(Collective),
    /// `all_gather` with a count for each rank.
    AllGatherV,
    /// `all_to_all` with a count for each pair.
    AllToAllV,
    /// `reduce_scatter` with a count for each rank.
    ReduceScatterV,
    /// `all_gather` between lists of buffers.
    AllGatherList,
    /// `gather` with a count for each rank.
    GatherV,
    /// `scatter` with a count for each rank.
    ScatterV,
    /// `all_gather` of vectors. Each rank knows only the length of its own vector.
    AllGatherVec,
    /// `gather` of vectors. Each rank knows only the length of its own vector.
    GatherVec,
    /// `scatter` of vectors. Only the root knows their lengths.
    ScatterVec,
    /// `all_gather` of encoded objects.
    AllGatherObject,
    /// `broadcast` of an encoded object.
    BroadcastObject,
    /// `gather` of encoded objects.
    GatherObject,
    /// `scatter` of encoded objects.
    ScatterObject,
    /// The barrier whose error lists the ranks that did not come.
    BarrierTimeout,
    /// A send or its receive.
    SendRecv,
    /// The exchange by which ranks split a communicator.
    Split,
}

impl OpKind {
    pub(super) const ALL_GATHER_V: u8 = 64;
    pub(super) const ALL_TO_ALL_V: u8 = 65;
    pub(super) const SEND_RECV: u8 = 66;
    pub(super) const SPLIT: u8 = 67;
    pub(super) const REDUCE_SCATTER_V: u8 = 68;
    pub(super) const GATHER_V: u8 = 69;
    pub(super) const SCATTER_V: u8 = 70;
    pub(super) const ALL_GATHER_OBJECT: u8 = 71;
    pub(super) const BROADCAST_OBJECT: u8 = 72;
    pub(super) const GATHER_OBJECT: u8 = 73;
    pub(super) const SCATTER_OBJECT: u8 = 74;
    pub(super) const BARRIER_TIMEOUT: u8 = 75;
    pub(super) const ALL_GATHER_LIST: u8 = 76;
    pub(super) const ALL_GATHER_VEC: u8 = 77;
    pub(super) const GATHER_VEC: u8 = 78;
    pub(super) const SCATTER_VEC: u8 = 79;
    /// Kinds whose counts differ between ranks, because every pair of ranks has its own.
    pub(super) const COUNTED_BY_PAIRS: [u8; 8] = [
        Self::ALL_TO_ALL_V,
        Self::GATHER_V,
        Self::SCATTER_V,
        Self::GATHER_VEC,
        Self::SCATTER_VEC,
        Self::GATHER_OBJECT,
        Self::SCATTER_OBJECT,
        Self::ALL_GATHER_LIST,
    ];

    /// Returns the name of the method in the API.
    pub(crate) fn name(self) -> &'static str {
        Self::name_of(self.code())
    }

    pub(super) fn code(self) -> u8 {
        match self {
            OpKind::Collective(collective) => collective as u8,
            OpKind::AllGatherV => Self::ALL_GATHER_V,
            OpKind::AllToAllV => Self::ALL_TO_ALL_V,
            OpKind::ReduceScatterV => Self::REDUCE_SCATTER_V,
            OpKind::GatherV => Self::GATHER_V,
            OpKind::ScatterV => Self::SCATTER_V,
            OpKind::AllGatherVec => Self::ALL_GATHER_VEC,
            OpKind::GatherVec => Self::GATHER_VEC,
            OpKind::ScatterVec => Self::SCATTER_VEC,
            OpKind::AllGatherObject => Self::ALL_GATHER_OBJECT,
            OpKind::BroadcastObject => Self::BROADCAST_OBJECT,
            OpKind::GatherObject => Self::GATHER_OBJECT,
            OpKind::ScatterObject => Self::SCATTER_OBJECT,
            OpKind::BarrierTimeout => Self::BARRIER_TIMEOUT,
            OpKind::AllGatherList => Self::ALL_GATHER_LIST,
            OpKind::SendRecv => Self::SEND_RECV,
            OpKind::Split => Self::SPLIT,
        }
    }

    pub(super) fn name_of(code: u8) -> &'static str {
        match code {
            Self::ALL_GATHER_V => "all_gather_v",
            Self::ALL_TO_ALL_V => "all_to_all_v",
            Self::REDUCE_SCATTER_V => "reduce_scatter_v",
            Self::GATHER_V => "gather_v",
            Self::SCATTER_V => "scatter_v",
            Self::ALL_GATHER_VEC => "all_gather_vec",
            Self::GATHER_VEC => "gather_vec",
            Self::SCATTER_VEC => "scatter_vec",
            Self::ALL_GATHER_OBJECT => "all_gather_object",
            Self::BROADCAST_OBJECT => "broadcast_object",
            Self::GATHER_OBJECT => "gather_object",
            Self::SCATTER_OBJECT => "scatter_object",
            Self::BARRIER_TIMEOUT => "barrier_timeout",
            Self::ALL_GATHER_LIST => "all_gather_list",
            Self::SEND_RECV => "send/recv",
            Self::SPLIT => "split",
            code => Collective::ALL.get(code as usize).map_or("unknown", |collective| collective.name()),
        }
    }
}

impl From<Collective> for OpKind {
    fn from(collective: Collective) -> Self {
        OpKind::Collective(collective)
    }
}
