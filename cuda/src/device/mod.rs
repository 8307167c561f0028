//! What the host knows of GPUs and of the kernels in `cuda/kernels`: their names and arguments, and with the feature
//! `gpu` memory, streams and launches.
//!
//! The driver is looked for at run time. Where there is none, `gpus` and `Gpu::open` say so.

mod arguments;
#[cfg(feature = "gpu")]
mod buffer;
#[cfg(feature = "gpu")]
pub mod compute;
#[cfg(feature = "gpu")]
pub(crate) mod driver;
#[cfg(feature = "gpu")]
mod error;
#[cfg(feature = "gpu")]
mod event;
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
mod memory;
pub mod model;
#[cfg(feature = "gpu")]
mod modules;
#[cfg(feature = "gpu")]
mod nvml;
#[cfg(feature = "nvrtc")]
mod nvrtc;
#[cfg(feature = "gpu")]
pub(crate) mod own;
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

pub use arguments::{Channel, Exchange, Fifo, Patience, Ping, ReduceCopy, State, Status};
#[cfg(feature = "gpu")]
pub use buffer::{Buffer, View, ViewMut};
#[cfg(feature = "gpu")]
pub use driver::gpus;
#[cfg(feature = "gpu")]
pub use error::GpuError;
#[cfg(feature = "gpu")]
pub use event::Event;
#[cfg(feature = "gpu")]
pub use gpu::Gpu;
#[cfg(feature = "gpu")]
pub use graph::{Graph, Repeat};
#[cfg(feature = "gpu")]
pub use interop::{DeviceBuffer, DeviceBufferMut};
#[cfg(feature = "gpu")]
pub use ipc::{Imported, IpcHandle};
#[cfg(feature = "gpu")]
pub use kernel::{Kernel, Shape};
#[cfg(feature = "gpu")]
pub use nvml::Links;
#[cfg(feature = "gpu")]
pub use own::{DeviceReduction, OwnKernels};
#[cfg(feature = "gpu")]
pub use pinned::{Held, Pinned};
pub use plain::Plain;
pub use schedule::{
    Act, Extent, Interpret, Lent, Neighbour, OneShot, Place, Port, Protocol, Share, Space, Strand, Verb,
};
#[cfg(feature = "gpu")]
pub use stream::{Copied, Stream};
#[cfg(feature = "gpu")]
pub use topology::{Path, Site};
