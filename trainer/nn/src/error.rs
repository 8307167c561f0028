//! Errors of this crate and of those above it. Each message names the cause and a remedy.

use unisono_transports::text::printable;

/// Result of the functions of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Errors of this crate and of those above it, by cause.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A collective failed; it names rank, host and operation.
    #[error(transparent)]
    Collective(#[from] unisono::Error),
    /// A GPU, its driver or its memory failed.
    #[error(transparent)]
    Gpu(#[from] unisono_cuda::device::GpuError),
    /// Numbers do not fit together: degrees, sizes or batch sizes. Nothing was started.
    #[error("{0}")]
    Invalid(String),
    /// A file cannot be read or written, or its contents are invalid.
    #[error("{path}: {what}")]
    File {
        /// Path of the file.
        path: std::path::PathBuf,
        /// Reason, for the message.
        what: String,
    },
    /// Ranks that should hold equal parameters do not.
    #[error("{0}")]
    ReplicasDiverged(String),
    /// The build or the device lacks a requested feature.
    #[error("{0}")]
    Unsupported(String),
}

impl Error {
    /// Builds [`Error::Invalid`] with this message.
    pub fn invalid(what: impl Into<String>) -> Self {
        Self::Invalid(what.into())
    }

    /// Builds [`Error::File`] about the file at `path`, whose contents `what` may quote.
    pub fn file(path: impl Into<std::path::PathBuf>, what: impl ToString) -> Self {
        Self::File { path: path.into(), what: printable(&what.to_string()).into_owned() }
    }
}
