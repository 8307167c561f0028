//! The executors of a collective: eager, pipelined and zero-copy.
//!
//! | executor | operations | data travels |
//! |---|---|---|
//! | [`eager`] | small, over shared memory | in slots, behind the flag that publishes them |
//! | [`pipelined`] | all others | in slices over links or windows |
//! | [`zero_copy`] | large, in symmetric memory | directly between the buffers of the callers |

pub(in crate::engine) mod arith;
pub(in crate::engine) mod eager;
pub(in crate::engine) mod pipelined;
pub(in crate::engine) mod slot_sync;
pub(in crate::engine) mod step;
pub(in crate::engine) mod zero_copy;

use crate::error::{Error, ErrorKind};

/// Returns the error for a program that uses a window where ranks share no memory.
#[cold]
fn no_window() -> Error {
    Error::new(ErrorKind::Unsupported("this algorithm needs memory that all ranks share".to_owned()))
}
