//! What can go wrong, said so that the reader can act.

pub(crate) mod bootstrap;

use crate::error::bootstrap::BootstrapError;
use crate::op_desc::OpDesc;
use crate::schedule::Rank;
use std::fmt;
use std::time::Duration;

/// Result of every operation.
pub type Result<T> = std::result::Result<T, Error>;

/// An error, with the party at fault and the place where it was seen.
///
/// After any error but [`ErrorKind::InvalidUsage`] the communicator is *poisoned*:
/// every later call returns the same error, on every rank. Ranks that could not
/// meet for another communicator ([`ErrorKind::Bootstrap`] from a split) still have the one they called.
#[derive(Clone, Debug)]
pub struct Error(Box<ErrorContext>);

#[derive(Clone, Debug)]
struct ErrorContext {
    kind: ErrorKind,
    rank: Option<Rank>,
    host: String,
    op: Option<OpDesc>,
    step: Option<u32>,
}

/// What happened, by the party at fault.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Two ranks called different things at the same place.
    Mismatch {
        /// One rank.
        rank: Rank,
        /// What it called.
        op: OpDesc,
        /// The other rank.
        other: Rank,
        /// What that one called.
        other_op: OpDesc,
    },
    /// Two ranks mean different lengths for one message of an uneven collective.
    CountMismatch {
        /// The rank that sent it.
        sender: Rank,
        /// Bytes it sent.
        sent: u64,
        /// The rank that received it.
        receiver: Rank,
        /// Bytes it expected.
        expected: u64,
    },
    /// A rank died or its connection was cut.
    PeerFailed {
        /// Who.
        peer: Rank,
        /// What was seen.
        what: String,
    },
    /// A rank dropped its communicator while others still needed it.
    PeerFinalized {
        /// Who.
        peer: Rank,
    },
    /// Nothing moved for as long as the configuration allows.
    Timeout {
        /// The ranks that were waited for, with what they last said they were doing.
        waiting_for: Vec<(Rank, Option<OpDesc>)>,
        /// Those of them whose operation is one of another communicator.
        elsewhere: Vec<Rank>,
        /// How long nothing moved.
        after: Duration,
    },
    /// Somebody called `abort`.
    Aborted {
        /// Who.
        by: Rank,
        /// Why, in the words of the caller.
        reason: String,
    },
    /// A rank gave an element that is no finite number, where [`Config::check_finite`](crate::Config::check_finite) asks for them.
    NotFinite {
        /// Who.
        rank: Rank,
        /// The first such element of what it gave.
        index: u64,
        /// What it is: NaN, or an infinity.
        what: String,
    },
    /// The other ranks have shrunk the communicator without this one, which said nothing for too long.
    Excluded {
        /// One of them.
        by: Rank,
    },
    /// A rank sent what no rank of this version sends.
    ProtocolViolation {
        /// Who.
        peer: Rank,
        /// What was seen.
        what: String,
    },
    /// The call cannot be carried out as it was made; nothing was sent.
    InvalidUsage(String),
    /// Ranks could not find each other.
    Bootstrap(BootstrapError),
    /// The operating system said no.
    System(String),
    /// A GPU or its driver said no.
    Gpu(String),
    /// Not part of this build or not possible over this transport.
    Unsupported(String),
    /// A fault of this library; please report it.
    Bug(String),
}

impl Error {
    /// An error with no rank yet.
    pub(crate) fn new(kind: ErrorKind) -> Self {
        Self(Box::new(ErrorContext { kind, rank: None, host: String::new(), op: None, step: None }))
    }

    /// A call that cannot be carried out.
    pub(crate) fn invalid_usage(what: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidUsage(what.into()))
    }

    /// Says who saw it, where, and in what. What is known already stays.
    pub(crate) fn with_rank(mut self, rank: Rank, host: &str, call: Option<OpDesc>) -> Self {
        if self.0.rank.is_none() {
            self.0.rank = Some(rank);
            self.0.host = host.to_owned();
        }
        self.0.op = self.0.op.or(call);
        self
    }

    /// Says in which operation it was seen, and in which of its steps.
    #[cfg(feature = "gpu")]
    pub(crate) fn with_op(mut self, call: OpDesc, step: Option<u32>) -> Self {
        (self.0.op, self.0.step) = (Some(call), step);
        self
    }

    /// What happened.
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    /// The rank that reports it.
    pub fn rank(&self) -> Option<Rank> {
        self.0.rank
    }

    /// The operation in which it was seen.
    pub fn op(&self) -> Option<&OpDesc> {
        self.0.op.as_ref()
    }

    /// Whether the communicator is still good.
    pub fn is_invalid_usage(&self) -> bool {
        matches!(self.0.kind, ErrorKind::InvalidUsage(_) | ErrorKind::Unsupported(_))
    }
}

impl ErrorKind {
    fn help(&self) -> &'static str {
        match self {
            ErrorKind::Mismatch { .. } => "make every rank call the same operations in the same order",
            ErrorKind::CountMismatch { .. } => "the counts given on the two ranks must agree",
            ErrorKind::PeerFailed { .. } => {
                "look at that rank's own output and exit code, then restart the job or go on with `shrink`"
            }
            ErrorKind::PeerFinalized { .. } => "keep the communicator until every rank is done with it",
            ErrorKind::Timeout { .. } => {
                "look at what those ranks are doing, or raise UNISONO_TIMEOUT_MS if they are only slow"
            }
            ErrorKind::NotFinite { .. } => {
                "look for where it comes from on that rank, or let it pass with UNISONO_CHECK_FINITE=off"
            }
            ErrorKind::Aborted { .. } => "make a new communicator to go on, for example with `shrink`",
            ErrorKind::Excluded { .. } => "end this process; another one may take its place",
            ErrorKind::ProtocolViolation { .. } => {
                "check that all ranks run the same build, and that hosts and network are sound"
            }
            ErrorKind::InvalidUsage(_) => "correct the call or the setting; communicators stay usable",
            ErrorKind::Bootstrap(failure) => failure.help(),
            ErrorKind::Gpu(_) => "look at what the driver says of this GPU (nvidia-smi, dmesg)",
            ErrorKind::System(_) => "check limits and permissions on this host",
            ErrorKind::Unsupported(_) => "choose another transport or algorithm",
            ErrorKind::Bug(_) => "please report this",
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ErrorKind::Mismatch { rank, op: call, other, other_op: other_call } => {
                write!(f, "rank {rank} called {call}, but rank {other} called {other_call}")
            }
            ErrorKind::CountMismatch { sender, sent, receiver, expected } => {
                write!(f, "rank {sender} sent {sent} bytes where rank {receiver} expected {expected}")
            }
            ErrorKind::PeerFailed { peer, what } => write!(f, "rank {peer} is gone ({what})"),
            ErrorKind::PeerFinalized { peer } => write!(f, "rank {peer} has left the communicator"),
            ErrorKind::Timeout { waiting_for, elsewhere, after } => {
                write!(f, "nothing moved for {:.1} s, waiting for ", after.as_secs_f64())?;
                for (index, (rank, call)) in waiting_for.iter().enumerate() {
                    let comma = if index > 0 { ", " } else { "" };
                    match call {
                        Some(call) => {
                            let of = if elsewhere.contains(rank) { " of another communicator" } else { "" };
                            write!(f, "{comma}rank {rank} (itself waiting in {call}{of})")?;
                        }
                        None => write!(f, "{comma}rank {rank} (silent)")?,
                    }
                }
                Ok(())
            }
            ErrorKind::Aborted { by, reason } => write!(f, "rank {by} aborted: {reason}"),
            ErrorKind::NotFinite { rank, index, what } => {
                write!(f, "element {index} of what rank {rank} gave is {what}")
            }
            ErrorKind::Excluded { by } => {
                write!(
                    f,
                    "rank {by} and others have gone on without this one, which said nothing for too long"
                )
            }
            ErrorKind::ProtocolViolation { peer, what } => {
                write!(f, "rank {peer} sent something impossible: {what}")
            }
            ErrorKind::Bootstrap(failure) => failure.fmt(f),
            ErrorKind::InvalidUsage(what)
            | ErrorKind::System(what)
            | ErrorKind::Gpu(what)
            | ErrorKind::Unsupported(what)
            | ErrorKind::Bug(what) => f.write_str(what),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let story = &*self.0;
        if let Some(rank) = story.rank {
            write!(f, "rank {rank} on {}", story.host)?;
            if let Some(call) = &story.op {
                write!(f, " in {call}")?;
            }
            if let Some(step) = story.step {
                write!(f, ", step {step}")?;
            }
            write!(f, ": ")?;
        }
        write!(f, "{}; {}", story.kind, story.kind.help())
    }
}

impl std::error::Error for Error {}

impl From<unisono_transports::Error> for Error {
    fn from(error: unisono_transports::Error) -> Self {
        use unisono_transports::Error as From;
        Self::new(match error {
            From::ConnectionLost { peer, what } => ErrorKind::PeerFailed { peer, what },
            From::ProtocolViolation { peer, what } => ErrorKind::ProtocolViolation { peer, what },
            From::InvalidUsage(what) => ErrorKind::InvalidUsage(what),
            #[cfg(feature = "gpu")]
            From::Gpu(error) => ErrorKind::Gpu(error.to_string()),
            other => ErrorKind::System(other.to_string()),
        })
    }
}

#[cfg(feature = "gpu")]
impl From<unisono_cuda::device::GpuError> for Error {
    fn from(error: unisono_cuda::device::GpuError) -> Self {
        Self::new(ErrorKind::Gpu(error.to_string()))
    }
}
