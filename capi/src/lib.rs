//! The C interface of unisono: `libunisono.so`, declared and documented in `include/unisono.h`.
//!
//! Every function that can fail returns a code, which is 0 for success and otherwise the number of
//! the error ([`unisono_core::Error::code`]). `unisono_last_error` returns the text of the last
//! error of the calling thread. A panic never crosses into C.

mod buffers;
pub mod collectives;
pub mod comm;
pub mod error;
pub mod groups;
pub mod messages;
pub mod operations;
pub mod point_to_point;
pub mod requests;
pub mod state;

pub mod uneven;
