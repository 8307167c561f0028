//! `group_start` and `group_end`, which belong to a thread.

use crate::result::{NcclError, NcclStatus};
use std::cell::Cell;

thread_local! {
    /// Groups of this thread that were started and not ended.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// Starts a group of collectives of this thread.
///
/// A collective is enqueued at once, inside a group too: it waits for no other rank. A send or
/// receive inside such a group is refused. [`Comm::group`](crate::Comm::group) takes them, because
/// it holds their buffers until its end.
///
/// # Errors
/// None.
pub fn group_start() -> Result<NcclStatus, NcclError> {
    DEPTH.with(|depth| depth.set(depth.get() + 1));
    Ok(NcclStatus::Success)
}

/// Ends the group that this thread started last.
///
/// # Errors
/// [`NcclError::Unsupported`] if this thread has started none.
pub fn group_end() -> Result<NcclStatus, NcclError> {
    let ended = DEPTH.with(|depth| depth.get().checked_sub(1).map(|left| depth.set(left)));
    let reason = "this thread has started no group; call group_start before";
    ended.map(|()| NcclStatus::Success).ok_or(NcclError::Unsupported { operation: "group_end", reason })
}

/// Returns an error inside of a group.
pub(crate) fn require_no_group(operation: &'static str) -> Result<(), NcclError> {
    let reason = "between group_start and group_end it could block for ever: its buffer is free again \
        before the group ends. Use Comm::group, which keeps it";
    match DEPTH.with(Cell::get) {
        0 => Ok(()),
        _ => Err(NcclError::Unsupported { operation, reason }),
    }
}
