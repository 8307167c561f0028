//! What can go wrong between two ranks.

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong on the way to a peer, or at home.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The peer is gone: its process ended or the connection was cut.
    #[error("rank {peer} is gone: {what}")]
    ConnectionLost {
        /// The peer.
        peer: usize,
        /// What was seen.
        what: String,
    },
    /// The peer wrote something that no peer of this version writes.
    #[error("rank {peer} sent something impossible: {what}")]
    ProtocolViolation {
        /// The peer.
        peer: usize,
        /// What was seen.
        what: String,
    },
    /// Peer and we do not prove the same secret.
    #[error("{peer} did not prove the job's secret: {what}")]
    AuthFailed {
        /// Address of the peer.
        peer: String,
        /// What was seen.
        what: String,
    },
    /// The peer proved the secret, and only one of the two is set up to encrypt.
    #[error("{peer} {}, and this rank {}", encryption_state(*.encrypts), encryption_state(!*.encrypts))]
    EncryptionMismatch {
        /// Address of the peer.
        peer: String,
        /// Which rank it is, where it has said so.
        rank: Option<usize>,
        /// Whether it is the peer that is.
        encrypts: bool,
    },
    /// The other side closed the connection before it had said what was due.
    #[error("{peer} closed the connection")]
    ConnectionClosed {
        /// Address of the peer.
        peer: String,
    },
    /// The peer speaks another version of the protocol.
    #[error("{peer} speaks protocol version {theirs}, this is {ours}")]
    VersionMismatch {
        /// Address of the peer.
        peer: String,
        /// Its version.
        theirs: u32,
        /// Ours.
        ours: u32,
    },
    /// A deadline passed.
    #[error("timed out: {what}")]
    Timeout {
        /// What was waited for.
        what: String,
    },
    /// The operating system refused a call.
    #[error("{what}: {source}{}", fd_hint(source))]
    System {
        /// The call, with its parameters.
        what: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The driver of a GPU said no.
    #[cfg(feature = "gpu")]
    #[error(transparent)]
    Gpu(#[from] unisono_cuda::device::GpuError),
    /// The caller asked for something that cannot be.
    #[error("{0}")]
    InvalidUsage(String),
}

/// Names the limit to raise where descriptors ran out.
fn fd_hint(error: &std::io::Error) -> &'static str {
    let exhausted = matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE));
    if exhausted { "; raise `ulimit -n`, the limit of open files" } else { "" }
}

fn encryption_state(encrypts: bool) -> &'static str {
    if encrypts { "encrypts its connections" } else { "does not encrypt" }
}
