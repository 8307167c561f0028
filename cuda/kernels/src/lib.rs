//! GPU kernels of unisono: the CUDA C++ sources, the PTX that NVRTC makes of them, and the machine
//! code that ptxas makes of the PTX.
//!
//! The PTX of all modules is one zstd frame of less than 1 MB. The machine code for an architecture
//! is one of less than 0.5 MB. The functions `modules` and `cubins` unpack what is needed, once a
//! process. `compile` beside this crate writes the frames, and `compile --check` compares them with
//! what the sources give, byte by byte.

mod cubins;
mod modules;
mod sources;

pub use cubins::{Cubin, cubins};
pub use modules::{Module, kernel_names, module, modules};
pub use sources::{SOURCES, headers, source};
