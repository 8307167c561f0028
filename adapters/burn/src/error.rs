//! Errors of the adapter.

use burn::tensor::DType;

/// Reasons why an operation on tensors fails.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The collective failed. The error names the rank, the operation and a remedy.
    Collective(unisono::Error),
    /// No collective reduces elements of this type.
    UnsupportedDType {
        /// The collective.
        operation: &'static str,
        /// The rank that called.
        rank: usize,
        /// The type of the tensor's elements.
        dtype: DType,
    },
    /// The tensor is on a backend without collectives, or whose feature is off.
    UnsupportedBackend {
        /// The collective.
        operation: &'static str,
        /// The rank that called.
        rank: usize,
        /// The device of the tensor.
        device: String,
    },
    /// Memory does not hold the result.
    OutOfMemory {
        /// The collective.
        operation: &'static str,
        /// The rank that called.
        rank: usize,
        /// The shape of the result.
        shape: Vec<usize>,
    },
    /// A tensor has no first dimension, or one that the ranks cannot share out equally.
    UnevenRows {
        /// The collective.
        operation: &'static str,
        /// The rank that called.
        rank: usize,
        /// The shape of the tensor.
        shape: Vec<usize>,
        /// The number of ranks, which must divide the first dimension.
        ranks: usize,
    },
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Collective(error) => error.fmt(f),
            Self::UnsupportedDType { operation, rank, dtype } => write!(
                f,
                "rank {rank}: {operation} has no reduction for elements of {dtype:?}; \
                 cast the tensor to F16, BF16, F32 or F64"
            ),
            Self::UnsupportedBackend { operation, rank, device } => write!(
                f,
                "rank {rank}: {operation} on a tensor runs on the backends Flex and NdArray, with the feature \
                 `flex` or `ndarray` of unisono-burn, and the tensor is on {device}; move it with `to_device`"
            ),
            Self::OutOfMemory { operation, rank, shape } => write!(
                f,
                "rank {rank}: {operation} finds no memory for a result of the shape {shape:?}; \
                 gather smaller tensors, or run fewer ranks on this host"
            ),
            Self::UnevenRows { operation, rank, shape, ranks } => write!(
                f,
                "rank {rank}: {operation} needs a first dimension that {ranks} ranks can share equally, \
                 and the shape is {shape:?}; pad the tensor or choose another batch size"
            ),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Collective(error) => Some(error),
            _ => None,
        }
    }
}

impl From<unisono::Error> for Error {
    fn from(error: unisono::Error) -> Self {
        Self::Collective(error)
    }
}

/// The result of an operation on tensors.
pub type Result<T> = std::result::Result<T, Error>;
