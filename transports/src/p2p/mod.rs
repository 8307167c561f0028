//! GPU ranks: FIFOs and windows in device memory that peers reach, filled and emptied by kernels.
//!
//! Every rank has one [`Arena`] with everything that its peers write; it is exported, and reached by the
//! others through the driver, in the same process or another of the host; so is what ranks lend each other ([`Lending`]). An [`Endpoint`] knows the
//! arenas of all, or a [`Stage`] where one is out of reach, and launches the kernels that carry out schedules. Its launches are safe: programs
//! and sizes are checked before a kernel gets them.

mod arena;
mod endpoint;
mod launch;
mod layout;
mod lent;
mod operand;
mod program;
mod rest;
mod shot;
mod stage;
mod trial;

pub use arena::{Arena, Reached};
pub use endpoint::{Endpoint, Peer, Uploaded};
pub use launch::Order;
pub use layout::{LINE_BYTES, Layout, Sizes};
pub use lent::{Grasp, Lending};
pub use operand::{Memory, Operand, Region, Shares, Typed};
pub use program::{Bounds, Program, Tables};
pub use stage::Stage;
pub use unisono_cuda::device::Protocol;
