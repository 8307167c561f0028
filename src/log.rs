//! Warnings that a user must see, even if the program has no log.

use unisono_transports::sys::stderr::print_line;

/// Warns through `tracing`, or on standard error if the program has no subscriber.
pub(crate) fn warn_user(text: &str) {
    if tracing::dispatcher::has_been_set() {
        tracing::warn!("{text}");
    } else {
        print_line(&format!("unisono: warning: {text}"));
    }
}
