//! The executors of a collective: eager, pipelined and zero-copy.
//!
//! - [`eager`] runs small operations over shared memory. Data travels in slots, behind a flag.
//! - [`zero_copy`] runs large operations in symmetric memory. Data travels directly between the
//!   buffers of the callers.
//! - [`pipelined`] runs all others. Data travels in slices over links or windows.

pub(in crate::engine) mod arith;
pub(in crate::engine) mod eager;
pub(in crate::engine) mod instr;
pub(in crate::engine) mod message;
pub(in crate::engine) mod pipelined;
pub(in crate::engine) mod slot_sync;
mod transfer;
pub(in crate::engine) mod zero_copy;

use crate::error::{Error, ErrorKind};

/// Returns the error for a program that uses a window where ranks share no memory.
#[cold]
fn no_window() -> Error {
    Error::new(ErrorKind::Bug(
        "an algorithm that needs a window was selected where ranks share no memory".to_owned(),
    ))
}
