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

    /// Its name, as in the API.
    pub(crate) fn name(self) -> &'static str {
        Self::name_of(self.code())
    }

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

impl From<Collective> for Kind {
    fn from(collective: Collective) -> Self {
        Kind::Collective(collective)
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
    /// On GPUs: more of the digests of lent places and of operations of callers' own, above the count in a tag.
    more: u32,
}

impl Call {
    /// Describes an operation.
    pub fn new(sequence: u64, kind: Kind, dtype: DType, op: Option<Op>, root: usize, count: u64) -> Self {
        let op = op.map_or(u8::MAX, |op| op as u8);
        let what = u64::from(kind.code())
            | (dtype as u64) << DTYPE_SHIFT
            | u64::from(op) << OP_SHIFT
            | u64::from(root as u32) << ROOT_SHIFT;
        Self { sequence, what, count, more: 0 }
    }

    /// The same on GPUs, whose operations have numbers of their own; `place` is a digest of where lent buffers are, if any are.
    #[cfg(feature = "gpu")]
    pub(crate) fn on_gpus(self, place: Option<u64>) -> Self {
        let code = place.map_or(0, |place| place % u64::from(u8::MAX) + 1);
        let what = self.what | GPU_BIT | code << PLACE_SHIFT;
        Self { what, count: self.count & GPU_COUNT_MAX, ..self }.with_more(place)
    }

    #[cfg(feature = "gpu")]
    fn with_more(self, digest: Option<u64>) -> Self {
        Self { more: self.more ^ digest.map_or(0, |digest| (digest >> 32) as u32 & MORE_MAX), ..self }
    }

    /// The same with an operation of the caller's, of which this is a digest.
    #[cfg(feature = "gpu")]
    pub(crate) fn with_own(self, digest: Option<u64>) -> Self {
        let Some(digest) = digest else { return self };
        let code = OWN_OP + digest % (u64::from(u8::MAX) - OWN_OP);
        Self { what: self.what & !(0xff << OP_SHIFT) | code << OP_SHIFT, ..self }.with_more(Some(digest))
    }

    fn op(&self) -> u8 {
        (self.what >> OP_SHIFT) as u8
    }

    /// Whether its number is one of the same row as the other's, as every rank takes part in both.
    pub(crate) fn is_numbered_with(&self, other: &Call) -> bool {
        self.is_of_all() && other.is_of_all() && (self.what ^ other.what) & GPU_BIT == 0
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
        Tag([self.sequence, self.what, self.count | u64::from(self.more) << MORE_SHIFT, piece])
    }

    /// From the first three words of a tag.
    pub fn from_tag(tag: &Tag) -> Self {
        let [sequence, what, count, _] = tag.0;
        match what & GPU_BIT {
            0 => Self { sequence, what, count, more: 0 },
            _ => Self { sequence, what, count: count & GPU_COUNT_MAX, more: (count >> MORE_SHIFT) as u32 },
        }
    }

    fn kind(&self) -> u8 {
        self.what as u8
    }

    pub(crate) fn dtype(&self) -> Option<DType> {
        DType::from_code((self.what >> DTYPE_SHIFT) as u8)
    }

    fn root(&self) -> u64 {
        self.what >> ROOT_SHIFT & ROOT_MAX
    }

    /// The operation's name, as in the API.
    pub fn name(&self) -> &'static str {
        Kind::name_of(self.kind())
    }

    /// Whether a rank that calls this and one that calls `other` mean the same: of an all_to_all_v, every pair has a count of
    /// its own.
    pub(crate) fn agrees_with(&self, other: &Call) -> bool {
        let count = if self.kind() == Kind::ALL_TO_ALL_V { other.count } else { self.count };
        Call { count, ..*self } == *other
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
const ROOT_MAX: u64 = (1 << 23) - 1;
/// From here on codes are digests of operations of callers' own, but for the last, which is none.
#[cfg(feature = "gpu")]
const OWN_OP: u64 = 0x80;
const GPU_BIT: u64 = 1 << 55;
const PLACE_SHIFT: u32 = 56;
/// No GPU has memory for more elements; above is room for digests, which have some 32 bits with those in `what`.
const MORE_SHIFT: u32 = 39;
const GPU_COUNT_MAX: u64 = (1 << MORE_SHIFT) - 1;
#[cfg(feature = "gpu")]
const MORE_MAX: u32 = (1 << (u64::BITS - MORE_SHIFT)) - 1;

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dtype = self.dtype().map_or("?", DType::name);
        write!(f, "{} #{} ({} x {dtype}", self.name(), self.sequence, self.count)?;
        match Op::from_code(self.op()) {
            Some(op) => write!(f, ", {op}")?,
            None if self.op() == u8::MAX => {}
            None => write!(f, ", an operation of its own, {:#x}", self.more << 8 | u32::from(self.op()))?,
        }
        if self.root() != 0 {
            write!(f, ", root {}", self.root())?;
        }
        let place = self.what >> PLACE_SHIFT;
        if place != 0 {
            write!(f, ", buffers at place {:#x} of lent memory", u64::from(self.more) << 8 | place)?;
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

    /// A digest of eight bits would be the same for one in 255 of them.
    #[cfg(feature = "gpu")]
    #[test]
    fn places_and_operations_of_ones_own_are_told_apart() {
        let (kind, digest) = (Kind::Collective(Collective::AllReduce), crate::communicator::digest);
        let plain = Call::new(7, kind, DType::F32, Some(Op::Sum), 0, 1 << 38);
        let places = (0..10_000).map(|place| plain.on_gpus(Some(digest(&[3, 64 * place]))));
        let own = (0..10_000).map(|own| plain.on_gpus(None).with_own(Some(digest(&[own]))));
        let calls: Vec<Call> = places.chain(own).collect();
        assert!(calls.iter().all(|call| Call::from_tag(&call.tag(0)) == *call && call.count == 1 << 38));
        let tags: std::collections::HashSet<_> = calls.iter().map(|call| call.tag(0).0).collect();
        assert_eq!(tags.len(), calls.len());
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
