//! Authentication and encryption of connections: the shared secret, the handshake and the record layer.

pub mod handshake;
pub(crate) mod noise;
pub mod record;
pub(crate) mod resolver;
pub(crate) mod secret;
