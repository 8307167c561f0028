//! Error kinds, by the party at fault.

use crate::error::abort::AbortCause;
use crate::error::bootstrap::BootstrapError;
use crate::op_desc::OpDesc;
use crate::schedule::Rank;
use std::fmt;
use std::time::Duration;

/// The kind of an error, by the party at fault.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Two ranks called different operations at the same position of their sequences.
    ///
    /// If two ranks exchange no data in these operations, they find the difference in the next
    /// operation in which they do. Then they compare their last calls, and the error names the
    /// first operation in which they differ.
    ///
    /// If that operation is not recorded any more, or no rank answers within a second, `op` and
    /// `other_op` are later operations. Several ranks may name different pairs of ranks, and so
    /// different operations.
    Mismatch {
        /// The first rank.
        rank: Rank,
        /// The operation that the first rank called.
        op: OpDesc,
        /// The other rank.
        other: Rank,
        /// The operation that the other rank called.
        other_op: OpDesc,
    },
    /// Two ranks give different lengths for one message of an uneven collective.
    CountMismatch {
        /// The rank that sent the message.
        sender: Rank,
        /// Bytes sent.
        sent: u64,
        /// The rank that received the message.
        receiver: Rank,
        /// Bytes expected.
        expected: u64,
    },
    /// A rank died, or its connection was lost.
    PeerFailed {
        /// The rank at fault.
        peer: Rank,
        /// A description of the failure.
        what: String,
    },
    /// A rank dropped its communicator while other ranks still needed it.
    PeerFinalized {
        /// The rank at fault.
        peer: Rank,
    },
    /// No data moved for as long as [`Config::timeout`](crate::Config::timeout) allows.
    Timeout {
        /// The ranks that this rank waited for, with the operation each reported last.
        waiting_for: Vec<(Rank, Option<OpDesc>)>,
        /// The ranks among these whose operation belongs to another communicator.
        elsewhere: Vec<Rank>,
        /// The time for which no data moved.
        after: Duration,
    },
    /// A message with a tag did not move for as long as [`Config::timeout`](crate::Config::timeout)
    /// allows, while this rank waited for it.
    MessageTimeout {
        /// The message: its direction, peer, tag and length.
        what: String,
        /// The other rank, unless any source was accepted.
        peer: Option<Rank>,
        /// The time for which nothing moved.
        after: Duration,
    },
    /// A rank ended the communicator for all ranks, or left it after a related communicator of that
    /// rank had failed.
    Aborted {
        /// The rank that ended or left it.
        by: Rank,
        /// The reason as text.
        reason: String,
        /// The reason as a value: a call of
        /// [`Communicator::abort`](crate::Communicator::abort), or a failure.
        cause: AbortCause,
    },
    /// A rank gave a NaN or an infinity under
    /// [`Config::check_finite`](crate::Config::check_finite).
    NotFinite {
        /// The rank that gave the element.
        rank: Rank,
        /// The index of the first such element in the rank's input.
        index: u64,
        /// The element: NaN or an infinity.
        what: String,
    },
    /// The other ranks shrank the communicator without this rank, which did not respond in time.
    Excluded {
        /// One of the other ranks.
        by: Rank,
    },
    /// A rank sent data that a rank of this version never sends.
    ProtocolViolation {
        /// The rank at fault.
        peer: Rank,
        /// A description of the failure.
        what: String,
    },
    /// The call or a setting was refused. Nothing was sent.
    InvalidUsage(String),
    /// The ranks could not connect to each other.
    Bootstrap(BootstrapError),
    /// A system call failed. [`Error::source`](std::error::Error::source) returns the error of the
    /// system.
    System(String),
    /// A GPU or its driver failed. [`Error::source`](std::error::Error::source) returns the error
    /// of the driver.
    Gpu(String),
    /// The feature is not part of this build, or is not possible over this transport.
    Unsupported(String),
    /// A defect of this library. Please report it.
    Bug(String),
    /// Ranks did not come to
    /// [`Communicator::barrier_timeout`](crate::Communicator::barrier_timeout) in time.
    BarrierTimeout {
        /// All ranks that did not come, in ascending order.
        missing: Vec<Rank>,
        /// The time for which the others waited.
        after: Duration,
    },
    /// An object could not be encoded, or could not be decoded as the type that this rank expects.
    Object {
        /// The rank that gave the object.
        rank: Rank,
        /// A description of the failure.
        what: String,
    },
}

impl ErrorKind {
    pub(super) fn help(&self) -> &'static str {
        match self {
            ErrorKind::Mismatch { op, other_op, .. } if op.differs_in_algorithm_only(other_op) => {
                "give all ranks the same UNISONO_ALGO, UNISONO_REDUCTION_ORDER and UNISONO_TUNING_FILE, and the same \
                 calls of `set_algorithm`"
            }
            ErrorKind::Mismatch { op, other_op, .. } if op.differs_in_history_only(other_op) => {
                "compare the earlier calls of both ranks: `unisono analyze` shows their flight records \
                 (UNISONO_FLIGHT_RECORDER_DIR)"
            }
            ErrorKind::Mismatch { .. } => "make every rank call the same operations in the same order",
            ErrorKind::CountMismatch { .. } => "the counts given on the two ranks must agree",
            ErrorKind::PeerFailed { .. } => {
                "look at that rank's own output and exit code, then restart the job or go on with `shrink`"
            }
            ErrorKind::PeerFinalized { .. } => "keep the communicator until every rank is done with it",
            ErrorKind::Timeout { .. } => {
                "look at what those ranks are doing, or raise UNISONO_TIMEOUT_MS if they are only slow"
            }
            ErrorKind::MessageTimeout { .. } => {
                "check that the other rank posts the matching call with the same tag, or raise UNISONO_TIMEOUT_MS"
            }
            ErrorKind::NotFinite { .. } => {
                "look for where it comes from on that rank, or let it pass with UNISONO_CHECK_FINITE=off"
            }
            ErrorKind::Aborted { cause, .. } => cause.help(),
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
            ErrorKind::BarrierTimeout { .. } => {
                "look at what those ranks are doing, then restart the job or go on without them with `shrink`"
            }
            ErrorKind::Object { .. } => {
                "give objects of one type on all ranks, which serde encodes without knowing its name; communicators \
                 stay usable"
            }
        }
    }
}

impl ErrorKind {
    /// Returns the number of the kind; see [`Error::code`](crate::Error::code).
    pub(super) fn code(&self) -> u32 {
        match self {
            ErrorKind::InvalidUsage(_) => 1,
            ErrorKind::Unsupported(_) => 2,
            ErrorKind::Bootstrap(_) => 3,
            ErrorKind::Mismatch { .. } => 4,
            ErrorKind::CountMismatch { .. } => 5,
            ErrorKind::PeerFailed { .. } => 6,
            ErrorKind::PeerFinalized { .. } => 7,
            ErrorKind::Timeout { .. } => 8,
            ErrorKind::Aborted { .. } => 9,
            ErrorKind::Excluded { .. } => 10,
            ErrorKind::ProtocolViolation { .. } => 11,
            ErrorKind::NotFinite { .. } => 12,
            ErrorKind::System(_) => 13,
            ErrorKind::Gpu(_) => 14,
            ErrorKind::Bug(_) => 15,
            ErrorKind::Object { .. } => 16,
            ErrorKind::MessageTimeout { .. } => 17,
            ErrorKind::BarrierTimeout { .. } => 18,
        }
    }

    /// Returns the rank at fault, from the point of view of `own_rank`.
    pub(super) fn peer(&self, own_rank: Option<Rank>) -> Option<Rank> {
        let other_than_own = |rank, other| if own_rank == Some(rank) { other } else { rank };
        let peer = match *self {
            ErrorKind::Mismatch { rank, other, .. } => other_than_own(other, rank),
            ErrorKind::CountMismatch { sender, receiver, .. } => other_than_own(sender, receiver),
            ErrorKind::PeerFailed { peer, .. }
            | ErrorKind::PeerFinalized { peer }
            | ErrorKind::ProtocolViolation { peer, .. } => peer,
            ErrorKind::Timeout { ref waiting_for, .. } => waiting_for.first()?.0,
            ErrorKind::BarrierTimeout { ref missing, .. } => *missing.first()?,
            ErrorKind::Aborted { by, ref cause, .. } => {
                cause.failure().and_then(|kind| kind.peer(own_rank)).unwrap_or(by)
            }
            ErrorKind::Excluded { by } => by,
            ErrorKind::MessageTimeout { peer, .. } => peer?,
            ErrorKind::NotFinite { rank, .. } | ErrorKind::Object { rank, .. } => rank,
            ErrorKind::InvalidUsage(_)
            | ErrorKind::Bootstrap(_)
            | ErrorKind::System(_)
            | ErrorKind::Gpu(_)
            | ErrorKind::Unsupported(_)
            | ErrorKind::Bug(_) => return None,
        };
        Some(peer).filter(|&peer| own_rank != Some(peer))
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ErrorKind::Mismatch { rank, op: call, other, other_op: other_call } => {
                if call.differs_in_history_only(other_call) {
                    let what = "but different operations before it";
                    return write!(f, "rank {rank} and rank {other} both called {call}, {what}");
                }
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
                            let suffix =
                                if elsewhere.contains(rank) { " of another communicator" } else { "" };
                            write!(f, "{comma}rank {rank} (itself waiting in {call}{suffix})")?;
                        }
                        None => write!(f, "{comma}rank {rank} (silent)")?,
                    }
                }
                Ok(())
            }
            ErrorKind::MessageTimeout { what, after, .. } => {
                write!(f, "{what}: nothing moved for {:.1} s", after.as_secs_f64())
            }
            ErrorKind::Aborted { by, reason, .. } => match self.departure_reason() {
                Some(_) => write!(f, "rank {by} has left the communicator after a failure: {reason}"),
                None => write!(f, "rank {by} aborted: {reason}"),
            },
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
            ErrorKind::BarrierTimeout { missing, after } => {
                let ranks: Vec<_> = missing.iter().map(|rank| format!("rank {rank}")).collect();
                let ranks = ranks.join(", ");
                write!(f, "did not come to the barrier within {:.1} s: {ranks}", after.as_secs_f64())
            }
            ErrorKind::Object { rank, what } => write!(f, "the object of rank {rank}: {what}"),
            ErrorKind::Bootstrap(failure) => failure.fmt(f),
            ErrorKind::InvalidUsage(what)
            | ErrorKind::System(what)
            | ErrorKind::Gpu(what)
            | ErrorKind::Unsupported(what)
            | ErrorKind::Bug(what) => f.write_str(what),
        }
    }
}
