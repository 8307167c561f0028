//! Connections between processes: streams over TCP and local sockets, their listeners, and the
//! [`handshake`] that authenticates and encrypts them.

pub mod handshake;
pub mod listener;
#[cfg(all(test, shuttle))]
pub(crate) mod model_sockets;
pub mod stream;
pub mod unix;
