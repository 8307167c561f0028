//! The error type, which holds the kind of an error, and the rank and operation that saw it.

pub(crate) mod abort;
pub(crate) mod bootstrap;
mod kind;

pub use abort::AbortCause;
pub use kind::ErrorKind;

use crate::op_desc::OpDesc;
use crate::schedule::Rank;
use std::fmt;
use std::sync::Arc;

/// Result of every operation.
pub type Result<T> = std::result::Result<T, Error>;

type Source = Arc<dyn std::error::Error + Send + Sync>;

/// An error with the rank at fault, and the rank and the operation that saw it.
///
/// An error that [is poisoning](Error::is_poisoning) ends the communicator: every later call
/// returns the same error, on every rank.
///
/// Both `Display` and `Debug` print the whole message. It ends with [advice](Error::help).
///
/// # Buffers after an error
///
/// A call that was [refused](Error::is_invalid_usage) has touched no buffer. After any other error
/// of an operation, its outputs and in-place buffers are unspecified: parts may be as before,
/// final, or partly reduced. So never repeat an operation in place on the same buffer. If input and
/// output are separate buffers, the input is unchanged. Symmetric memory, which peers write
/// directly, stays unspecified until this communicator is dropped. Some ranks may have completed an
/// operation in which others failed.
///
/// ```
/// use unisono::{Communicator, ErrorKind};
///
/// let comm = Communicator::local(2)?.remove(0);
/// let error = comm.broadcast(&mut [1.0f32], 7).unwrap_err();
/// assert!(matches!(error.kind(), ErrorKind::InvalidUsage(_)));
/// assert!(!error.is_poisoning() && !comm.is_poisoned());
/// assert_eq!((error.rank(), error.peer()), (Some(0), None));
/// # Ok::<(), unisono::Error>(())
/// ```
#[derive(Clone)]
pub struct Error(Box<ErrorContext>);

#[derive(Clone)]
struct ErrorContext {
    kind: ErrorKind,
    rank: Option<Rank>,
    host: String,
    op: Option<OpDesc>,
    step: Option<u32>,
    label: Option<String>,
    source: Option<Source>,
}

impl Error {
    /// Makes an error without a rank.
    pub(crate) fn new(kind: ErrorKind) -> Self {
        let (rank, host, op, step, label, source) = (None, String::new(), None, None, None, None);
        Self(Box::new(ErrorContext { kind, rank, host, op, step, label, source }))
    }

    /// Makes an error for a call that cannot be carried out.
    pub(crate) fn invalid_usage(what: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidUsage(what.into()))
    }

    /// If the error is that ranks could not connect, changes the reason.
    pub(crate) fn map_bootstrap(
        mut self,
        change: impl FnOnce(bootstrap::BootstrapError) -> bootstrap::BootstrapError,
    ) -> Self {
        self.0.kind = match self.0.kind {
            ErrorKind::Bootstrap(failure) => ErrorKind::Bootstrap(change(failure)),
            other => other,
        };
        self
    }

    /// Makes an error of the operating system that happened during `what`.
    pub(crate) fn system(what: impl fmt::Display, source: std::io::Error) -> Self {
        Self::new(ErrorKind::System(format!("{what}: {source}"))).with_source(source)
    }

    pub(crate) fn with_source(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.0.source = Some(Arc::new(source));
        self
    }

    /// Adds the rank, host and operation that saw the error, as far as the error does not have them
    /// yet.
    pub(crate) fn with_rank(mut self, rank: Rank, host: &str, call: Option<OpDesc>) -> Self {
        if self.0.rank.is_none() {
            self.0.rank = Some(rank);
            self.0.host = host.to_owned();
        }
        self.0.op = self.0.op.or(call);
        self
    }

    /// Adds the caller's label of the operation, unless the error has one.
    pub(crate) fn with_label(mut self, label: &str) -> Self {
        self.0.label.get_or_insert_with(|| label.to_owned());
        self
    }

    /// Adds the operation that saw the error, and its step.
    #[cfg(feature = "gpu")]
    pub(crate) fn with_op(mut self, call: OpDesc, step: Option<u32>) -> Self {
        (self.0.op, self.0.step) = (Some(call), step);
        self
    }

    /// Returns the kind of the error.
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    /// Returns the rank that reports the error, if it is known.
    pub fn rank(&self) -> Option<Rank> {
        self.0.rank
    }

    /// Returns the operation in which the error was seen.
    pub fn op(&self) -> Option<&OpDesc> {
        self.0.op.as_ref()
    }

    /// Returns the other rank that the error is about. This is the rank that failed, left, aborted
    /// or called a different operation, or the first rank for which this rank waited. After a
    /// failure, all survivors get the rank that failed. If it failed in a related communicator,
    /// they get the rank that left this one because of that.
    pub fn peer(&self) -> Option<Rank> {
        self.0.kind.peer(self.0.rank)
    }

    /// Returns a sentence that says what to do next, without a period at its end.
    pub fn help(&self) -> &'static str {
        match self.0.kind {
            ErrorKind::InvalidUsage(_) if self.0.rank.is_none() => "correct the call or the setting",
            _ => self.0.kind.help(),
        }
    }

    /// Returns the number of the kind of error, for languages without enums.
    ///
    /// Numbers begin at 1, because 0 means success in such languages. A number never changes its
    /// meaning, and a new kind gets a new number.
    ///
    /// ```
    /// let error = unisono::Communicator::local(0).unwrap_err();
    /// assert_eq!(error.code(), 1);
    /// ```
    pub fn code(&self) -> u32 {
        self.0.kind.code()
    }

    /// Returns true if the call or its arguments were refused. The communicator still works.
    pub fn is_invalid_usage(&self) -> bool {
        matches!(self.0.kind, ErrorKind::InvalidUsage(_) | ErrorKind::Unsupported(_))
    }

    /// Returns true if the error ends the communicator that returned it.
    ///
    /// All kinds do this except these:
    ///
    /// - [`ErrorKind::InvalidUsage`] and [`ErrorKind::Unsupported`]: one call was refused.
    /// - [`ErrorKind::Bootstrap`]: a new communicator was not made, and the old one has not
    ///   changed.
    /// - [`ErrorKind::Object`]: the exchange of the objects itself was complete.
    pub fn is_poisoning(&self) -> bool {
        let spares = matches!(self.0.kind, ErrorKind::Bootstrap(_) | ErrorKind::Object { .. });
        !spares && !self.is_invalid_usage()
    }

    /// Returns true if the ranks that are left can go on with
    /// [`Communicator::shrink`](crate::Communicator::shrink), which leaves out the rank that
    /// failed, left or is silent.
    ///
    /// Returns false for errors that would come again: a mismatch, ranks that wait for each other,
    /// a call of [`Communicator::abort`](crate::Communicator::abort), or a failure of this rank
    /// itself. If a shrink leaves no rank out, it has not removed the cause either, so a recovery
    /// loop must end then.
    ///
    /// ```
    /// use unisono::{Communicator, Error, Result};
    ///
    /// /// Goes on without the ranks that failed, or returns `error`.
    /// fn survivors(comm: &Communicator, error: Error) -> Result<Communicator> {
    ///     if !error.is_recoverable() {
    ///         return Err(error);
    ///     }
    ///     let left = comm.shrink()?;
    ///     if left.size() < comm.size() { Ok(left) } else { Err(error) }
    /// }
    /// # let mut ranks = Communicator::local(2)?;
    /// # drop(ranks.pop());
    /// # let comm = ranks.remove(0);
    /// # let error = comm.barrier().unwrap_err();
    /// # assert_eq!(survivors(&comm, error)?.size(), 1);
    /// # Ok::<(), Error>(())
    /// ```
    pub fn is_recoverable(&self) -> bool {
        self.0.kind.is_recoverable()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let context = &*self.0;
        if let Some(rank) = context.rank {
            write!(f, "rank {rank} on {}", context.host)?;
            if let Some(call) = &context.op {
                write!(f, " in {call}")?;
            }
            if let Some(step) = context.step {
                write!(f, ", step {step}")?;
            }
            if let Some(label) = &context.label {
                write!(f, ", \"{label}\"")?;
            }
            write!(f, ": ")?;
        }
        write!(f, "{}; {}", context.kind, self.help())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {
    /// Returns the error of the operating system ([`std::io::Error`]) or of the GPU driver.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

impl From<unisono_transports::Error> for Error {
    fn from(error: unisono_transports::Error) -> Self {
        use unisono_transports::Error as From;
        match error {
            From::ConnectionLost { peer, what } => Self::new(ErrorKind::PeerFailed { peer, what }),
            From::ProtocolViolation { peer, what } => Self::new(ErrorKind::ProtocolViolation { peer, what }),
            From::InvalidUsage(what) => Self::invalid_usage(what),
            From::System { what, source } => Self::system(what, source),
            #[cfg(feature = "gpu")]
            From::Gpu(error) => error.into(),
            other => Self::new(ErrorKind::System(other.to_string())),
        }
    }
}

#[cfg(feature = "gpu")]
impl From<unisono_cuda::device::GpuError> for Error {
    fn from(error: unisono_cuda::device::GpuError) -> Self {
        Self::new(ErrorKind::Gpu(error.to_string())).with_source(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error as _;
    use std::io;

    #[test]
    fn system_error_keeps_its_io_error_as_source() {
        let transport = unisono_transports::Error::System {
            what: "bind 10.0.0.1:80".to_owned(),
            source: io::ErrorKind::PermissionDenied.into(),
        };
        let error = Error::from(transport).with_rank(2, "here", None);
        let source = error.clone();
        let source = source.source().and_then(|source| source.downcast_ref::<io::Error>()).unwrap();
        assert_eq!(source.kind(), io::ErrorKind::PermissionDenied);
        assert!(error.is_poisoning());
        assert!(error.to_string().starts_with("rank 2 on here: bind 10.0.0.1:80: "), "{error}");
    }

    #[test]
    fn debug_prints_the_display_message() {
        let error = Error::invalid_usage("the root is rank 9").with_rank(1, "here", None);
        assert_eq!(format!("{error:?}"), error.to_string());
        assert!(error.to_string().ends_with(&format!("; {}", error.help())));
    }

    #[test]
    fn codes_never_change() {
        let text = String::new;
        let kinds = [
            ErrorKind::InvalidUsage(text()),
            ErrorKind::Unsupported(text()),
            ErrorKind::Bootstrap(crate::BootstrapError::Other { what: text() }),
        ];
        assert_eq!(kinds.map(|kind| Error::new(kind).code()), [1, 2, 3]);
        assert_eq!(Error::new(ErrorKind::PeerFinalized { peer: 3 }).code(), 7);
        assert_eq!(Error::new(ErrorKind::Excluded { by: 0 }).code(), 10);
        let last = [ErrorKind::System(text()), ErrorKind::Gpu(text()), ErrorKind::Bug(text())];
        assert_eq!(last.map(|kind| Error::new(kind).code()), [13, 14, 15]);
        let missing = ErrorKind::BarrierTimeout { missing: vec![1], after: std::time::Duration::ZERO };
        assert_eq!(Error::new(missing).code(), 18);
        assert_eq!(Error::new(ErrorKind::Object { rank: 0, what: text() }).code(), 16);
    }

    #[test]
    fn peer_names_the_other_rank() {
        let peer = |kind, rank| Error::new(kind).with_rank(rank, "here", None).peer();
        assert_eq!(peer(ErrorKind::PeerFinalized { peer: 3 }, 0), Some(3));
        let mismatch = ErrorKind::CountMismatch { sender: 1, sent: 8, receiver: 4, expected: 12 };
        assert_eq!((peer(mismatch.clone(), 4), peer(mismatch, 1)), (Some(1), Some(4)));
        assert_eq!(peer(ErrorKind::abort_request(0, "no"), 0), None);
        assert_eq!(peer(ErrorKind::Bug("no".to_owned()), 0), None);
    }

    #[test]
    fn refused_calls_and_failed_joins_do_not_poison() {
        let poisons = |kind| Error::new(kind).is_poisoning();
        assert!(!poisons(ErrorKind::InvalidUsage(String::new())));
        assert!(!poisons(ErrorKind::Unsupported(String::new())));
        assert!(!poisons(ErrorKind::Bootstrap(bootstrap::BootstrapError::Other { what: String::new() })));
        assert!(!poisons(ErrorKind::Object { rank: 1, what: String::new() }));
        assert!(poisons(ErrorKind::PeerFailed { peer: 1, what: String::new() }));
    }
}
