//! GPU memory, streams, graphs and launches, and the kernels that ranks run on GPUs.
//!
//! The driver is loaded at run time, so the crate builds and runs on machines without one. The
//! kernels of `cuda/kernels` compute what the functions of the crate `unisono-reducers` compute on
//! the CPU.

pub mod device;
#[cfg(feature = "emulator")]
pub mod emulator;
#[cfg(feature = "emulator")]
pub mod test_gpu;

pub use cudarc;
