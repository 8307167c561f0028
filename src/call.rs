//! What one operation is, in the words that travel with every message.

use crate::schedule::{Algorithm, Collective};
use std::fmt;
use unisono_cuda::{DType, Op};
use unisono_transports::Tag;

/// The kinds of operation: the collectives, and what only some ranks take part in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// One of the collectives of the table.
    Collective(Collective),
    /// all_gather with a count for each rank.
    AllGatherV,
    /// all_to_all with a count for each pair.
    AllToAllV,
    /// One send and its receive.
    SendRecv,
}

impl Kind {
    const ALL_GATHER_V: u8 = 64;
    const ALL_TO_ALL_V: u8 = 65;
    const SEND_RECV: u8 = 66;

    fn code(self) -> u8 {
        match self {
            Kind::Collective(collective) => collective as u8,
            Kind::AllGatherV => Self::ALL_GATHER_V,
            Kind::AllToAllV => Self::ALL_TO_ALL_V,
            Kind::SendRecv => Self::SEND_RECV,
        }
    }

    fn name_of(code: u8) -> &'static str {
        match code {
            Self::ALL_GATHER_V => "all_gather_v",
            Self::ALL_TO_ALL_V => "all_to_all_v",
            Self::SEND_RECV => "send/recv",
            code => Collective::ALL.get(code as usize).map_or("unknown", |collective| collective.name()),
        }
    }
}

/// An operation as one rank called it.
///
/// Every message and every window carries it, so that two ranks that do
/// different things find out at their first contact.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Call {
    /// Number of the operation in its communicator, from 0. Sends and receives count for each pair.
    pub sequence: u64,
    /// Kind, type, operation and algorithm, a byte each, and the root: as in a tag.
    what: u64,
    /// Elements, as the caller counts them; a digest of the counts where there are many.
    pub count: u64,
}

impl Call {
    /// Describes an operation.
    pub fn new(sequence: u64, kind: Kind, dtype: DType, op: Option<Op>, root: usize, count: u64) -> Self {
        let op = op.map_or(u8::MAX, |op| op as u8);
        let what = u64::from(kind.code())
            | (dtype as u64) << DTYPE_SHIFT
            | u64::from(op) << OP_SHIFT
            | u64::from(root as u32) << ROOT_SHIFT;
        Self { sequence, what, count }
    }

    /// The same with this number.
    pub(crate) fn numbered(self, sequence: u64) -> Self {
        Self { sequence, ..self }
    }

    /// The same, done by the algorithm with this digest.
    pub(crate) fn by(self, algorithm: Digest) -> Self {
        let what = self.what & !(0xff << ALGORITHM_SHIFT) | u64::from(algorithm.0) << ALGORITHM_SHIFT;
        Self { what, ..self }
    }

    /// As the first three words of a tag; the fourth tells the piece.
    #[inline]
    pub fn tag(&self, piece: u64) -> Tag {
        Tag([self.sequence, self.what, self.count, piece])
    }

    /// From the first three words of a tag.
    pub fn from_tag(tag: &Tag) -> Self {
        let [sequence, what, count, _] = tag.0;
        Self { sequence, what, count }
    }

    fn kind(&self) -> u8 {
        self.what as u8
    }

    fn dtype(&self) -> Option<DType> {
        DType::from_code((self.what >> DTYPE_SHIFT) as u8)
    }

    fn root(&self) -> u32 {
        (self.what >> ROOT_SHIFT) as u32
    }

    /// The operation's name, as in the API.
    pub fn name(&self) -> &'static str {
        Kind::name_of(self.kind())
    }

    /// Whether every rank takes part, so that sequence numbers are comparable.
    pub(crate) fn is_of_all(&self) -> bool {
        self.kind() != Kind::SEND_RECV
    }

    /// Bytes of one share, where all are equally long: then the count tells.
    pub(crate) fn bytes(&self) -> Option<u64> {
        let is_even = self.kind() != Kind::ALL_GATHER_V && self.kind() != Kind::ALL_TO_ALL_V;
        let size = self.dtype().map(DType::size).filter(|_| is_even)?;
        self.count.checked_mul(size as u64)
    }

    pub(crate) fn algorithm_name(&self) -> Option<&'static str> {
        let digest = (self.what >> ALGORITHM_SHIFT) as u8;
        Algorithm::ALL.iter().find(|row| name_digest(row.name) == digest).map(|row| row.name)
    }
}

const DTYPE_SHIFT: u32 = 8;
const OP_SHIFT: u32 = 16;
const ALGORITHM_SHIFT: u32 = 24;
const ROOT_SHIFT: u32 = 32;

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dtype = self.dtype().map_or("?", DType::name);
        write!(f, "{} #{} ({} x {dtype}", self.name(), self.sequence, self.count)?;
        if let Some(op) = Op::from_code((self.what >> OP_SHIFT) as u8) {
            write!(f, ", {op}")?;
        }
        if self.root() != 0 {
            write!(f, ", root {}", self.root())?;
        }
        match self.algorithm_name() {
            Some(name) => write!(f, ", {name})"),
            None => write!(f, ")"),
        }
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// Eight bits that tell the algorithms of one collective apart (FNV-1a, folded).
/// An algorithm's name in one byte; worked out once and kept, because calls are made often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Digest(u8);

impl Digest {
    /// The digest of `algorithm`.
    pub(crate) fn of(algorithm: &Algorithm) -> Self {
        Self(name_digest(algorithm.name))
    }
}

fn name_digest(name: &str) -> u8 {
    let hash = name.bytes().fold(0x811c_9dc5u32, |hash, byte| (hash ^ byte as u32).wrapping_mul(0x0100_0193));
    (hash ^ hash >> 8 ^ hash >> 16 ^ hash >> 24) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_survives_its_tag() {
        let kind = Kind::Collective(Collective::Reduce);
        let call = Call::new(7, kind, DType::BF16, Some(Op::Avg), 3, 1 << 40);
        assert_eq!(Call::from_tag(&call.tag(5)), call);
        assert_eq!(call.to_string(), "reduce #7 (1099511627776 x bfloat16, avg, root 3)");
    }

    #[test]
    fn algorithms_of_one_collective_have_different_digests() {
        for a in Algorithm::ALL {
            for b in Algorithm::ALL {
                let same = a.collective == b.collective && a.name != b.name;
                assert!(!same || name_digest(a.name) != name_digest(b.name), "{} and {}", a.name, b.name);
            }
        }
    }
}
