//! GPU ranks, with FIFOs and windows in device memory that peers can access. Kernels fill and empty
//! them.
//!
//! Every rank has one [`PeerMemory`] with everything that its peers write. The driver exports it
//! and maps it, in the same process or in another of the host. Symmetric memory ([`WindowSet`]) is
//! shared in the same way.
//!
//! An [`Endpoint`] holds the peer memory of all ranks, or a [`HostStaging`] for a rank that it
//! cannot reach. It launches the kernels that execute schedules. Its launches are safe, because
//! programs and sizes are checked before a kernel gets them.

mod endpoint;
pub(crate) mod host_staging;
mod launch;
mod launch_counter;
mod layout;
pub(crate) mod link_test;
pub(crate) mod one_shot;
mod operand;
pub(crate) mod peer_memory;
mod program;
pub(crate) mod quiesce;
mod reach;
mod table_arena;
pub(crate) mod window_set;

pub use crate::gpu::endpoint::{DeviceProgram, Endpoint, Peer, Reserve};
pub use crate::gpu::host_staging::HostStaging;
pub use crate::gpu::launch::LaunchParams;
pub use crate::gpu::layout::{CACHE_LINE_BYTES, DeviceGeometry, Layout, PEER_MEMORY_BYTES_MAX};
pub use crate::gpu::link_test::LinkTest;
pub use crate::gpu::operand::{Operand, OperandMemory, Region, ShareTable, TypedRegion};
pub use crate::gpu::peer_memory::{MappedPeerMemory, PeerMemory};
pub use crate::gpu::program::{Program, ProgramBounds, ProgramTables};
pub use crate::gpu::reach::Reach;
pub use crate::gpu::window_set::{AddressTable, WindowSet};
pub use unisono_cuda::device::Protocol;
