//! Errors of the adapter.

use candle_core::DType;

/// Reasons why training over ranks fails.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A collective failed. The error names the rank, the operation and a remedy.
    Collective(unisono::Error),
    /// An operation of candle failed.
    Candle(candle_core::Error),
    /// No collective carries elements of this type.
    UnsupportedDType {
        /// The rank that has the variable.
        rank: usize,
        /// The type of the variable's elements.
        dtype: DType,
    },
    /// Two ranks have other variables: in number, name, shape or type.
    DifferentModels {
        /// The rank that noticed.
        rank: usize,
        /// The first rank whose variables differ from those of rank 0.
        other: usize,
    },
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Collective(error) => error.fmt(f),
            Self::Candle(error) => error.fmt(f),
            Self::UnsupportedDType { rank, dtype } => write!(
                f,
                "rank {rank}: a variable has elements of {dtype:?}, which no collective carries; \
                 use BF16, F16, F32 or F64"
            ),
            Self::DifferentModels { rank, other } => write!(
                f,
                "rank {rank}: the variables of rank {other} differ from those of rank 0 in number, name, \
                 shape or type; build the same model on every rank, and give the variables in the same order"
            ),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Collective(error) => Some(error),
            Self::Candle(error) => Some(error),
            _ => None,
        }
    }
}

impl From<unisono::Error> for Error {
    fn from(error: unisono::Error) -> Self {
        Self::Collective(error)
    }
}

impl From<candle_core::Error> for Error {
    fn from(error: candle_core::Error) -> Self {
        Self::Candle(error)
    }
}

/// The result of an operation on a model.
pub type Result<T> = std::result::Result<T, Error>;
