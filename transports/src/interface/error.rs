//! Errors of transports.

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Error of a connection to a peer, or of this process.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The connection to a peer is lost, because its process ended or the network was cut.
    #[error("rank {peer} is gone: {what}")]
    ConnectionLost {
        /// Rank of the peer.
        peer: usize,
        /// Observation that shows it.
        what: String,
    },
    /// The peer sent bytes that a peer of this version never sends.
    #[error("rank {peer} sent invalid bytes: {what}")]
    ProtocolViolation {
        /// Rank of the peer.
        peer: usize,
        /// Observation that shows it.
        what: String,
    },
    /// The peer did not prove the secret of the job.
    #[error("{peer} did not prove the job's secret: {what}")]
    AuthFailed {
        /// Address of the peer.
        peer: String,
        /// Observation that shows it.
        what: String,
    },
    /// The peer proved the secret, but only one of the two ranks encrypts.
    #[error("{peer} {}, and this rank {}", encryption_state(*.encrypts), encryption_state(!*.encrypts))]
    EncryptionMismatch {
        /// Address of the peer.
        peer: String,
        /// Rank of the peer, if it is known.
        rank: Option<usize>,
        /// True if the peer encrypts.
        encrypts: bool,
    },
    /// The peer closed the connection too early.
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
        /// Version of the peer.
        theirs: u32,
        /// Version of this rank.
        ours: u32,
    },
    /// A deadline passed.
    #[error("timed out: {what}")]
    Timeout {
        /// Event that did not come.
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
    /// The driver of a GPU reported an error.
    #[cfg(feature = "gpu")]
    #[error(transparent)]
    Gpu(#[from] unisono_cuda::device::GpuError),
    /// The caller violated the contract of a function.
    #[error("{0}")]
    InvalidUsage(String),
}

/// If descriptors ran out, returns a hint that names the limit to raise.
fn fd_hint(error: &std::io::Error) -> &'static str {
    let exhausted = matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE));
    if exhausted { "; raise `ulimit -n`, the limit of open files" } else { "" }
}

fn encryption_state(encrypts: bool) -> &'static str {
    if encrypts { "encrypts its connections" } else { "does not encrypt" }
}
