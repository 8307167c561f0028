//! Authentication and encryption of connections.
//!
//! A job has one `Secret`. The [`handshake`] proves it on every new connection, by the
//! Noise protocol (`noise`) over the primitives of `resolver`. If the job encrypts, the connection
//! continues in the records of [`record`].

pub mod handshake;
pub(crate) mod noise;
pub mod record;
pub(crate) mod resolver;
pub(crate) mod secret;
