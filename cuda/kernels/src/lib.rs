//! GPU kernels of unisono: the CUDA C++ sources, and the PTX that NVRTC makes of them.
//!
//! The PTX of all modules is one zstd frame of less than 1 MB. [`modules`] unpacks it once a
//! process. `compile` beside this crate writes the frame, and `compile --check` compares it with
//! what NVRTC makes of the sources, byte by byte.

mod modules;
mod sources;

pub use modules::{Module, kernel_names, module, modules};
pub use sources::{SOURCES, headers, source};
