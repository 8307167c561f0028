//! Errors and codes.

pub use crate::group_calls::{group_end, group_start};

/// The status of a call that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NcclStatus {
    /// The operation is enqueued.
    Success,
}

/// Reasons why a call fails.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum NcclError {
    /// An error of the library. It names the rank, the operation and a remedy.
    Unisono(unisono::Error),
    /// The number of a rank or of a root is negative.
    NegativeRank {
        /// The call.
        operation: &'static str,
        /// The rank that called.
        rank: usize,
        /// The number.
        peer: i32,
    },
    /// The call has no counterpart here.
    Unsupported {
        /// The call.
        operation: &'static str,
        /// The reason and another way.
        reason: &'static str,
    },
    /// The bytes of an [`Id`](crate::Id) are those of no id.
    InvalidId {
        /// The reason.
        reason: String,
    },
}

/// Codes of NCCL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NcclResult {
    /// `ncclUnhandledCudaError`
    UnhandledCudaError = 1,
    /// `ncclSystemError`
    SystemError = 2,
    /// `ncclInternalError`
    InternalError = 3,
    /// `ncclInvalidArgument`
    InvalidArgument = 4,
    /// `ncclInvalidUsage`
    InvalidUsage = 5,
    /// `ncclRemoteError`
    RemoteError = 6,
}

impl NcclError {
    /// Returns the code that NCCL has for an error of this kind.
    pub fn result(&self) -> NcclResult {
        use unisono::ErrorKind as Kind;
        let Self::Unisono(error) = self else {
            return match self {
                Self::NegativeRank { .. } | Self::InvalidId { .. } => NcclResult::InvalidArgument,
                _ => NcclResult::InvalidUsage,
            };
        };
        match error.kind() {
            Kind::InvalidUsage(_) | Kind::Unsupported(_) | Kind::Mismatch { .. } => NcclResult::InvalidUsage,
            Kind::CountMismatch { .. } | Kind::NotFinite { .. } => NcclResult::InvalidArgument,
            Kind::Gpu(_) => NcclResult::UnhandledCudaError,
            Kind::System(_) | Kind::Bootstrap(_) => NcclResult::SystemError,
            Kind::Bug(_) => NcclResult::InternalError,
            _ => NcclResult::RemoteError,
        }
    }
}

impl std::fmt::Display for NcclError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unisono(error) => error.fmt(f),
            Self::NegativeRank { operation, rank, peer } => {
                write!(f, "rank {rank}: {operation} with rank {peer}: ranks are numbered from 0")
            }
            Self::Unsupported { operation, reason } => write!(f, "{operation}: {reason}"),
            Self::InvalidId { reason } => {
                write!(f, "{reason}; give every rank the bytes that `Id::internal` returns on rank 0")
            }
        }
    }
}

impl std::error::Error for NcclError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Unisono(error) => Some(error),
            _ => None,
        }
    }
}

impl From<unisono::Error> for NcclError {
    fn from(error: unisono::Error) -> Self {
        Self::Unisono(error)
    }
}

impl From<unisono::device::GpuError> for NcclError {
    fn from(error: unisono::device::GpuError) -> Self {
        Self::Unisono(error.into())
    }
}
