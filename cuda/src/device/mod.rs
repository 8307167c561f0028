//! Names and arguments of the kernels in `cuda/kernels`, and with the feature `gpu` memory, streams
//! and launches.
//!
//! The driver is loaded at run time. Without a driver, `gpus` and `Gpu::open` return an error.

mod arguments;
#[cfg(feature = "gpu")]
mod buffer;
#[cfg(feature = "gpu")]
mod capture_mode;
#[cfg(feature = "gpu")]
pub mod compute;
#[cfg(feature = "gpu")]
pub(crate) mod driver;
#[cfg(feature = "gpu")]
mod error;
#[cfg(feature = "gpu")]
mod event;
#[cfg(feature = "gpu")]
mod foreign_graph;
#[cfg(feature = "gpu")]
mod gpu;
#[cfg(feature = "gpu")]
mod graph;
#[cfg(feature = "gpu")]
mod interop;
#[cfg(feature = "gpu")]
mod ipc;
#[cfg(feature = "gpu")]
mod kernel;
#[cfg(feature = "gpu")]
mod mark;
#[cfg(feature = "gpu")]
mod memory;
pub mod model;
#[cfg(feature = "gpu")]
mod modules;
#[cfg(feature = "gpu")]
mod mps;
#[cfg(feature = "gpu")]
mod nvml;
#[cfg(feature = "nvrtc")]
mod nvrtc;
#[cfg(feature = "gpu")]
mod pinned;
mod plain;
#[cfg(feature = "gpu")]
mod pool;
#[cfg(feature = "gpu")]
mod reduce;
mod schedule;
#[cfg(feature = "gpu")]
mod stream;
mod table;
#[cfg(feature = "gpu")]
mod topology;
#[cfg(feature = "gpu")]
pub(crate) mod user_op;

#[cfg(feature = "gpu")]
pub use crate::device::user_op::{DeviceReduceOp, UserOpKernels};
pub use arguments::{Channel, Completion, Deadline, Exchange, Fifo, Ping, ReduceCopy, WaitReport, WaitState};
#[cfg(feature = "gpu")]
pub use buffer::{Buffer, View, ViewMut};
#[cfg(feature = "gpu")]
pub use capture_mode::exempt_thread_from_captures;
#[cfg(feature = "gpu")]
pub use driver::gpus;
#[cfg(feature = "gpu")]
pub use error::GpuError;
#[cfg(feature = "gpu")]
pub use event::Event;
#[cfg(feature = "gpu")]
pub use gpu::Gpu;
#[cfg(feature = "gpu")]
pub use graph::{Graph, ReplayHook};
#[cfg(feature = "gpu")]
pub use interop::{DeviceBuffer, DeviceBufferMut};
#[cfg(feature = "gpu")]
pub use ipc::{EXPORT_UNIT_BYTES, ImportedMemory, IpcHandle};
#[cfg(feature = "gpu")]
pub use kernel::{Kernel, LaunchDims};
#[cfg(feature = "gpu")]
pub use memory::MemoryRef;
#[cfg(feature = "gpu")]
pub use modules::ImageCounts;
#[cfg(feature = "gpu")]
pub use nvml::NvLinks;
#[cfg(feature = "gpu")]
pub use pinned::Pinned;
pub use plain::Plain;
pub use schedule::{
    BufferLayout, ChunkRef, Instr, LaneProgram, MemorySpace, OneShotArgs, Opcode, PeerBuffers, PeerWindow,
    Port, Protocol, ScheduleArgs, Share,
};
#[cfg(feature = "gpu")]
pub use stream::{CaptureState, CopyStats, Stream, StreamFollower};
#[cfg(feature = "gpu")]
pub use topology::{GpuInfo, PeerPath};
