//! The secret of a job, and the ciphers that it keys.
//!
//! A job has one [`Secret`]. [`handshake`](crate::net::handshake) proves it on every new
//! connection, by the Noise protocol (`noise`) over the primitives of `resolver`. If the job
//! encrypts, the connection continues in the records of [`record`].

pub(crate) mod noise;
pub mod record;
pub(crate) mod resolver;
mod secret;

pub use secret::Secret;
