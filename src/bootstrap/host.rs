//! Identifies the host of a rank, independently of its name.

use std::os::unix::fs::MetadataExt;
use unisono_transports::sys::user::own_is_distinct;

/// Returns a text that identifies the kernel's boot, the network namespace and the user.
///
/// Ranks with equal texts can share memory through local sockets. Host names would not do, because
/// they may be equal by accident, and containers have their own. PID namespaces do not matter.
pub(crate) fn identity() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let network = std::fs::metadata("/proc/self/ns/net").map_or(0, |file| file.ino());
    let user = std::fs::metadata("/proc/self").map_or(0, |file| file.uid());
    if boot.is_empty() || !own_is_distinct().unwrap_or(false) {
        // The text for an unknown host or user must differ from all others.
        return format!("unknown host of process {}", std::process::id());
    }
    format!("{} {network} {user}", boot.trim())
}
