//! Warnings that a user must see, also in a program without a log.

use std::io::Write;

/// Warns through `tracing`, or on standard error if the program has no subscriber.
pub(crate) fn warn_user(text: &str) {
    if tracing::dispatcher::has_been_set() {
        tracing::warn!("{text}");
    } else {
        // One write, so that lines of several threads and processes stay whole.
        let line = format!("unisono: warning: {text}\n");
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
}
