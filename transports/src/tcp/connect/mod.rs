//! Establishment of TCP connections between ranks.
//!
//! * [`acceptor`]: the thread that accepts connections of peers.
//! * [`handshake_pool`]: connections whose handshake is not complete.
//! * [`lazy_link`]: links that connect when they are first used.
//! * `dialer`: the client side, in steps that never wait.
//! * `probe`: the check whether a rank is alive after its connection was reset.

pub mod acceptor;
pub(crate) mod dialer;
pub mod handshake_pool;
pub mod lazy_link;
pub(crate) mod probe;
