//! Names and arguments of the kernels in `cuda/kernels`, and with the feature `gpu` memory, streams
//! and launches.
//!
//! The driver is loaded at run time. Without a driver, `gpus` and `Gpu::open` return an error.

mod arguments;
mod buffer;
mod capture_mode;
pub mod compute;
pub(crate) mod driver;
mod error;
mod event;
mod foreign_graph;
mod gpu;
mod graph;
mod interop;
mod ipc;
mod kernel;
mod mark;
mod memory;
pub mod model;
mod modules;
mod mps;
mod nvml;
#[cfg(feature = "nvrtc")]
mod nvrtc;
mod pinned;
mod pool;
mod reduce;
mod schedule;
mod stream;
mod table;
mod topology;
pub(crate) mod user_op;

pub use crate::device::user_op::{DeviceReduceOp, UserOpKernels};
pub use arguments::{Channel, Completion, Deadline, Exchange, Fifo, Ping, ReduceCopy, WaitReport, WaitState};
pub use buffer::{Buffer, View, ViewMut};
pub use capture_mode::exempt_thread_from_captures;
pub use driver::gpus;
pub use error::GpuError;
pub use event::Event;
pub use gpu::Gpu;
pub use graph::{Graph, ReplayHook};
pub use interop::{DeviceBuffer, DeviceBufferMut};
pub use ipc::{EXPORT_UNIT_BYTES, ImportedMemory, IpcHandle};
pub use kernel::{DeviceCopy, Kernel, LaunchDims};
pub use memory::MemoryRef;
pub use modules::ImageCounts;
pub use nvml::NvLinks;
pub use pinned::Pinned;
pub use schedule::{
    BufferLayout, ChunkRef, Instr, LaneProgram, MemorySpace, OneShotArgs, Opcode, PeerBuffers, PeerWindow,
    Port, Protocol, ScheduleArgs, Share,
};
pub use stream::{CaptureState, CopyStats, Stream, StreamFollower};
pub use topology::{GpuInfo, PeerPath};
