//! Fuzz target for the bytes that ranks send each other when they join on GPUs.

use crate::device::{placement, registered, topology};

/// Reads bytes as the placements, handles, locations and distances of all ranks.
pub(crate) fn cards(bytes: &[u8]) {
    placement::fuzz(bytes);
    let cards = bytes.len() / registered::REGISTRATION_BYTES;
    let handles = registered::parse_handles(&bytes[..cards * registered::REGISTRATION_BYTES], 0);
    assert!(handles.is_err() || handles.is_ok_and(|handles| handles.len() == cards));
    topology::fuzz(bytes);
}
