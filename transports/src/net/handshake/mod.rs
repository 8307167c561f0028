//! Mutual authentication of a new connection by the Noise handshake `NNpsk0`, keyed with the job's
//! secret.
//!
//! One handshake serves every connection. It proves to both ends that the other knows the secret,
//! and it agrees on keys that exist for this connection only. A job that encrypts continues with
//! these keys, in [records](crate::secure::record). A job that does not encrypt drops these keys
//! and continues in plain text.
//!
//! ```text
//! client                                        server
//!   magic, version, hello, Noise message 1  →
//!                                           ←   magic, version, accepted, Noise message 2
//!   confirmation                            →
//!                                           ←   confirmation
//! ```
//!
//! # Why it is safe
//!
//! * Message 1 carries a code that only the secret can make, so a peer without the secret is
//!   refused at once.
//! * Message 1 may be a recording, because it depends on nothing that the server chose. So the
//!   server only answers it, and reports the [`Hello`] only after the client's confirmation.
//! * A confirmation is the first record under the keys of the connection. Its sender knows the
//!   secret and the private half of a key that was made for this connection, so a recording
//!   cannot contain it.
//! * The preamble and the hello are the Noise prologue. A changed bit of either makes message 1
//!   invalid.
//! * Each direction has its own key, so a confirmation that is sent back does not open.
//! * A confirmation says whether its sender encrypts. The statement is sealed, so nobody in between
//!   can turn encryption off.
//!
//! All frames have fixed sizes, and a caller sets one deadline for the whole handshake.

mod client;
mod frames;
mod server;
#[cfg(test)]
mod tests;

pub use crate::net::handshake::client::ClientHandshake;
#[cfg(test)]
pub(crate) use crate::net::handshake::frames::VERSION;
pub use crate::net::handshake::server::ServerHandshake;
pub use crate::secure::Secret;

use crate::Result;
use crate::net::stream::Stream;
use rustix::event::PollFlags;
use std::time::Instant;

/// The secret of a job and its choice of encryption.
#[derive(Clone, Debug)]
pub struct HandshakeConfig {
    /// The secret that both ends must prove.
    pub secret: Secret,
    /// Encrypts TCP connections. Connections within a host are never encrypted.
    pub encrypt: bool,
}

/// The statement of a client about itself. It can be trusted only after the client's confirmation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Purpose of the connection.
    pub purpose: Purpose,
    /// Rank of the client.
    pub rank: u32,
    /// Number of ranks, as the client knows it.
    pub ranks: u32,
    /// Index of the connection among the connections between the two ranks.
    pub index: u32,
    /// Identifier that the bootstrap gave to the communicator. It is zero during the bootstrap.
    pub session: u64,
}

/// Purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Purpose {
    /// Joins the bootstrap.
    Join = 1,
    /// Carries control messages, and the descriptors of shared memory.
    Control = 2,
    /// Carries data messages.
    Data = 3,
    /// Queries the status of a process.
    Status = 4,
    /// Checks that a rank is alive after its control connection was reset.
    Probe = 5,
}

impl HandshakeConfig {
    fn encrypts(&self, stream: &Stream) -> bool {
        self.encrypt && stream.tcp().is_some()
    }
}

/// Authenticates both ends of `stream` as the client.
///
/// # Errors
/// The errors of [`ClientHandshake::advance`], and [`Error::Timeout`](crate::Error::Timeout) at the
/// deadline.
pub fn connect(
    stream: &mut Stream,
    config: &HandshakeConfig,
    hello: &Hello,
    deadline: Instant,
) -> Result<()> {
    let mut handshake = ClientHandshake::start(stream, config, hello)?;
    while !handshake.advance(stream, config)? {
        stream.wait(PollFlags::IN, deadline)?;
    }
    Ok(())
}

/// Authenticates both ends of `stream` as the server, and returns the client's hello.
///
/// # Errors
/// The errors of [`ServerHandshake::advance`], and [`Error::Timeout`](crate::Error::Timeout) at the
/// deadline.
pub fn accept(stream: &mut Stream, config: &HandshakeConfig, deadline: Instant) -> Result<Hello> {
    let mut handshake = ServerHandshake::default();
    loop {
        if let Some(hello) = handshake.advance(stream, config)? {
            return Ok(hello);
        }
        stream.wait(PollFlags::IN, deadline)?;
    }
}
