//! TCP connections between ranks: accepting, dialing on first use, pending handshakes and liveness probes.

pub mod acceptor;
pub(crate) mod dialer;
pub mod lazy_link;
pub mod pending;
pub(crate) mod probe;
