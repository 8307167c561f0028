//! GPU ranks: FIFOs and windows in device memory that peers reach, filled and emptied by kernels.
pub mod layout;
