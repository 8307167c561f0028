//! What can go wrong while training, said so that the reader can act.

/// Result of everything in this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What happened, by the party at fault.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A collective failed; it names rank, host and operation.
    #[error(transparent)]
    Collective(#[from] unisono::Error),
    /// A GPU, its driver or its memory failed.
    #[error(transparent)]
    Gpu(#[from] unisono_cuda::device::GpuError),
    /// Numbers that do not go together: degrees, sizes, batch arithmetic. Nothing was started.
    #[error("{0}")]
    Invalid(String),
    /// A file that cannot be read or written, or that says something impossible.
    #[error("{path}: {what}")]
    File {
        /// Which.
        path: std::path::PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// Ranks that should hold the same numbers do not.
    #[error("{0}")]
    ReplicasDiverged(String),
    /// Not part of this build.
    #[error("{0}")]
    Unsupported(String),
}

impl Error {
    /// Numbers that do not go together.
    pub fn invalid(what: impl Into<String>) -> Self {
        Self::Invalid(what.into())
    }

    /// Something about the file at `path`.
    pub fn file(path: impl Into<std::path::PathBuf>, what: impl ToString) -> Self {
        Self::File { path: path.into(), what: what.to_string() }
    }
}
