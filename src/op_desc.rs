//! The fingerprint of an operation, which travels with every message.
//!
//! The first word of a tag has the number of the operation. Its bits from 48 up are a digest of the
//! earlier operations of all ranks. The second word has these bits:
//!
//! ```text
//!  0-7   kind of operation
//!  8-15  element type
//! 16-23  reduction; 255 for none, from 128 on a digest of a user-defined one
//! 24-31  digest of the algorithm
//! 32-54  root
//!    55  set for operations on GPUs
//! 56-63  on GPUs, part of a digest of the symmetric buffers; 0 for none
//!        else, more of the digest of the algorithm; 0 for a built-in one
//! ```
//!
//! The third word is the count. On GPUs and for user-defined reductions, its upper 25 bits hold
//! further bits of the digests.

mod algorithm_digest;
mod op_kind;

pub(crate) use algorithm_digest::{AlgorithmDigest, register_algorithm};
pub use op_kind::OpKind;

use crate::schedule::Collective;
use std::borrow::Cow;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use unisono_reducers::{DType, ReduceKind};
use unisono_transports::Tag;

/// An operation as one rank called it.
///
/// Every message and every window carries this descriptor. So ranks that call different operations
/// notice this when they first exchange data.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct OpDesc {
    /// The first word of the tag. It holds the number, and part of a digest of the earlier
    /// operations of all ranks. The part of the digest is zero for sends, receives and operations
    /// on GPUs.
    place: u64,
    /// The second word of the tag. The documentation of the module has a table of its bits.
    packed: u64,
    /// Number of elements in one share, or a digest of the counts of uneven shares.
    pub count: u64,
    /// More bits of the digests of symmetric buffers on GPUs and of user-defined reductions.
    extra_bits: u32,
}

impl OpDesc {
    /// Creates the fingerprint of an operation.
    pub fn new(
        sequence: u64,
        kind: OpKind,
        dtype: DType,
        op: Option<ReduceKind>,
        root: usize,
        count: u64,
    ) -> Self {
        let op = op.map_or(u8::MAX, |op| op as u8);
        let packed = u64::from(kind.code())
            | (dtype as u64) << DTYPE_SHIFT
            | u64::from(op) << OP_SHIFT
            | u64::from(root as u32) << ROOT_SHIFT;
        Self { place: sequence & SEQUENCE_MAX, packed, count, extra_bits: 0 }
    }

    /// Marks an operation on GPUs. Such operations have separate sequence numbers.
    ///
    /// `place` is a digest of the offsets of symmetric buffers, if the operation uses any.
    #[cfg(feature = "gpu")]
    pub(crate) fn on_gpu(self, place: Option<u64>) -> Self {
        let code = place.map_or(0, |place| place % u64::from(u8::MAX) + 1);
        let packed = self.packed & !(0xff << HIGH_SHIFT) | GPU_BIT | code << HIGH_SHIFT;
        Self { packed, count: self.count & GPU_COUNT_MAX, ..self }.with_extra_bits(place)
    }

    fn with_extra_bits(self, digest: Option<u64>) -> Self {
        Self {
            extra_bits: self.extra_bits ^ digest.map_or(0, |digest| (digest >> 32) as u32 & EXTRA_MAX),
            ..self
        }
    }

    /// Sets the digest of a user-defined reduction.
    pub(crate) fn with_user_op(self, digest: Option<u64>) -> Self {
        let Some(digest) = digest else { return self };
        let code = USER_OP + digest % (u64::from(u8::MAX) - USER_OP);
        let packed = self.packed & !(0xff << OP_SHIFT) | code << OP_SHIFT;
        Self { packed, count: self.count & GPU_COUNT_MAX, ..self }.with_extra_bits(Some(digest))
    }

    /// Returns a text for a user-defined reduction, with its name if this process knows it.
    fn user_op_text(&self) -> String {
        let plain = Self { extra_bits: 0, ..*self };
        let named = op_names()
            .iter()
            .find(|(digest, _)| {
                let candidate = plain.with_user_op(Some(*digest));
                (candidate.op_code(), candidate.extra_bits) == (self.op_code(), self.extra_bits)
            })
            .map(|(_, name)| name.clone());
        match named {
            Some(name) => format!("own reduction {name}"),
            None => {
                let digest = self.extra_bits << 8 | u32::from(self.op_code());
                format!("a user-defined operation, {digest:#x}")
            }
        }
    }

    fn is_on_gpu(&self) -> bool {
        self.packed & GPU_BIT != 0
    }

    /// Returns the digest of the algorithm. For an operation on GPUs, returns only its low byte.
    fn algorithm(&self) -> AlgorithmDigest {
        let high = if self.is_on_gpu() { 0 } else { (self.packed >> HIGH_SHIFT) as u8 };
        AlgorithmDigest::from_bytes([(self.packed >> ALGORITHM_SHIFT) as u8, high])
    }

    fn op_code(&self) -> u8 {
        (self.packed >> OP_SHIFT) as u8
    }

    /// Returns true if both operations are numbered by the same counter, so that their numbers can
    /// be compared.
    pub(crate) fn shares_sequence_with(&self, other: &OpDesc) -> bool {
        self.is_collective() && other.is_collective() && (self.packed ^ other.packed) & GPU_BIT == 0
    }

    /// Returns the number of the operation in its communicator, from 0. Sends and receives are
    /// numbered for each pair.
    #[inline]
    pub fn sequence(&self) -> u64 {
        self.place & SEQUENCE_MAX
    }

    /// Sets the sequence number.
    #[cfg(feature = "gpu")]
    pub(crate) fn with_sequence(self, sequence: u64) -> Self {
        Self { place: self.place & !SEQUENCE_MAX | sequence & SEQUENCE_MAX, ..self }
    }

    /// Sets the sequence number, and the upper 16 bits of `history`, the digest of the operations
    /// before this one.
    #[inline]
    pub(crate) fn after(self, history: u64, sequence: u64) -> Self {
        Self { place: history & !SEQUENCE_MAX | sequence, ..self }
    }

    /// Sets the count.
    pub(crate) fn with_count(self, count: u64) -> Self {
        Self { count, ..self }
    }

    /// Returns two words that are equal on all ranks that call this operation.
    #[inline]
    pub(crate) fn agreed_words(&self) -> [u64; 2] {
        // Each pair of ranks has a count of its own in some operations, so that count is no part of
        // what all ranks agree on.
        let is_plain = self.kind_code() < OpKind::ALL_GATHER_V;
        let is_by_pairs = !is_plain && OpKind::COUNTED_BY_PAIRS.contains(&self.kind_code());
        [self.packed, if is_by_pairs { 0 } else { self.count }]
    }

    fn count_word(&self) -> u64 {
        self.count | u64::from(self.extra_bits) << EXTRA_SHIFT
    }

    /// Sets the algorithm.
    pub(crate) fn with_algorithm(self, algorithm: AlgorithmDigest) -> Self {
        let [low, high] = algorithm.bytes().map(u64::from);
        let mut packed = self.packed & !(0xff << ALGORITHM_SHIFT) | low << ALGORITHM_SHIFT;
        if !self.is_on_gpu() {
            packed = packed & !(0xff << HIGH_SHIFT) | high << HIGH_SHIFT;
        }
        Self { packed, ..self }
    }

    /// Returns the tag of a slice, which has three words of fingerprint and the number of the
    /// slice.
    #[inline]
    pub fn tag(&self, slice: u64) -> Tag {
        Tag([self.place, self.packed, self.count_word(), slice])
    }

    /// Reads a fingerprint from the first three words of a tag.
    pub fn from_tag(tag: &Tag) -> Self {
        let [place, packed, count, _] = tag.0;
        match packed & GPU_BIT != 0 || is_user_op((packed >> OP_SHIFT) as u8) {
            false => Self { place, packed, count, extra_bits: 0 },
            true => Self {
                place,
                packed,
                count: count & GPU_COUNT_MAX,
                extra_bits: (count >> EXTRA_SHIFT) as u32,
            },
        }
    }

    fn kind_code(&self) -> u8 {
        self.packed as u8
    }

    pub(crate) fn dtype(&self) -> Option<DType> {
        DType::from_code((self.packed >> DTYPE_SHIFT) as u8)
    }

    fn root(&self) -> u64 {
        self.packed >> ROOT_SHIFT & ROOT_MAX
    }

    fn has_root(&self) -> bool {
        let code = self.kind_code();
        let collective = self.algorithm_collective();
        collective.is_some_and(Collective::has_root) || [OpKind::GATHER_V, OpKind::SCATTER_V].contains(&code)
    }

    /// Returns the name of the method in the API.
    pub fn name(&self) -> &'static str {
        OpKind::name_of(self.kind_code())
    }

    /// Returns true if both ranks called the same operation.
    ///
    /// The counts of `all_to_all_v` and similar operations differ between ranks, because every pair
    /// of ranks has its own count.
    pub(crate) fn matches(&self, other: &OpDesc) -> bool {
        let by_pairs = OpKind::COUNTED_BY_PAIRS.contains(&self.kind_code());
        let count = if by_pairs { other.count } else { self.count };
        OpDesc { count, ..*self } == *other
    }

    /// Returns true if every rank takes part, so that sequence numbers can be compared.
    pub(crate) fn is_collective(&self) -> bool {
        self.kind_code() != OpKind::SEND_RECV
    }

    /// Returns the number of bytes of one share, if all shares are equally long.
    pub(crate) fn bytes(&self) -> Option<u64> {
        let code = self.kind_code();
        let digests = [OpKind::ALL_GATHER_V, OpKind::REDUCE_SCATTER_V];
        let is_even = !digests.contains(&code) && !OpKind::COUNTED_BY_PAIRS.contains(&code);
        let size = self.dtype().map(DType::size).filter(|_| is_even)?;
        self.count.checked_mul(size as u64)
    }

    /// Returns true if `other` has the same number, but the operations before it differ.
    pub(crate) fn differs_in_history(&self, other: &Self) -> bool {
        self.sequence() == other.sequence() && self.place != other.place
    }

    /// Returns true if `other` is the same operation, but the operations before it differ.
    pub(crate) fn differs_in_history_only(&self, other: &Self) -> bool {
        self != other && self.after(other.place, self.sequence()) == *other
    }

    /// Returns true if `other` is the same operation with another algorithm.
    pub(crate) fn differs_in_algorithm_only(&self, other: &Self) -> bool {
        self != other && self.with_algorithm(other.algorithm()) == *other
    }

    /// Returns the name of the algorithm, which may be an algorithm of the caller. If several
    /// algorithms of the caller have the same digest, returns all their names.
    pub(crate) fn algorithm_name(&self) -> Option<Cow<'static, str>> {
        self.algorithm().name(self.algorithm_collective()?, self.is_on_gpu())
    }

    /// Returns the collective whose algorithms can carry out the operation.
    fn algorithm_collective(&self) -> Option<Collective> {
        match self.kind_code() {
            OpKind::ALL_GATHER_V | OpKind::ALL_GATHER_VEC | OpKind::ALL_GATHER_OBJECT => {
                Some(Collective::AllGather)
            }
            OpKind::BROADCAST_OBJECT => Some(Collective::Broadcast),
            OpKind::GATHER_VEC | OpKind::GATHER_OBJECT => Some(Collective::Gather),
            OpKind::SCATTER_VEC | OpKind::SCATTER_OBJECT => Some(Collective::Scatter),
            OpKind::ALL_TO_ALL_V => Some(Collective::AllToAll),
            OpKind::REDUCE_SCATTER_V => Some(Collective::ReduceScatter),
            code => Collective::ALL.get(code as usize).copied(),
        }
    }
}

/// The largest sequence number. A communicator would need years to reach it.
const SEQUENCE_MAX: u64 = (1 << 48) - 1;
const DTYPE_SHIFT: u32 = 8;
const OP_SHIFT: u32 = 16;
const ALGORITHM_SHIFT: u32 = 24;
const ROOT_SHIFT: u32 = 32;
const ROOT_MAX: u64 = (1 << 23) - 1;
/// First code of user-defined reductions. The last code, 255, means no reduction.
const USER_OP: u64 = 0x80;
const GPU_BIT: u64 = 1 << 55;
/// Position of the digest of symmetric buffers on GPUs. On CPUs, position of the high byte of the
/// digest of the algorithm.
const HIGH_SHIFT: u32 = 56;
/// Bits of the count on GPUs. No GPU has memory for more elements, so the bits above hold digests.
/// Together with its bits in the second word, a digest has about 32 bits.
const EXTRA_SHIFT: u32 = 39;
const GPU_COUNT_MAX: u64 = (1 << EXTRA_SHIFT) - 1;
const EXTRA_MAX: u32 = (1 << (u64::BITS - EXTRA_SHIFT)) - 1;

impl fmt::Display for OpDesc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dtype = self.dtype().map_or("?", DType::name);
        match self.name() {
            // The counts of all ranks are compared only by their digest.
            name @ ("all_gather_v" | "reduce_scatter_v") => {
                write!(f, "{name} #{} (counts with digest {:x} of {dtype}", self.sequence(), self.count)?;
            }
            name => write!(f, "{name} #{} ({} x {dtype}", self.sequence(), self.count)?,
        }
        match ReduceKind::from_code(self.op_code()) {
            Some(op) => write!(f, ", {op}")?,
            None if self.op_code() == u8::MAX => {}
            None => write!(f, ", {}", self.user_op_text())?,
        }
        if self.has_root() {
            write!(f, ", root {}", self.root())?;
        }
        let place = self.packed >> HIGH_SHIFT;
        if self.is_on_gpu() && place != 0 {
            write!(
                f,
                ", buffers at digest {:#x} of symmetric memory",
                u64::from(self.extra_bits) << 8 | place
            )?;
        }
        match self.algorithm_name() {
            Some(name) => write!(f, ", {name})"),
            None if self.algorithm().is_own() => write!(f, ", own algorithm {:?})", self.algorithm()),
            None => write!(f, ")"),
        }
    }
}

impl fmt::Debug for OpDesc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// Returns true for the codes of user-defined reductions.
fn is_user_op(code: u8) -> bool {
    u64::from(code) >= USER_OP && code != u8::MAX
}

/// Makes the name of a user-defined reduction known to errors.
pub(crate) fn register_op_name(digest: u64, name: &str) {
    let mut names = op_names();
    if !names.iter().any(|(known, _)| *known == digest) {
        names.push((digest, name.to_owned()));
    }
}

/// Returns the names of user-defined reductions in this process, with their digests.
fn op_names() -> MutexGuard<'static, Vec<(u64, String)>> {
    static NAMES: Mutex<Vec<(u64, String)>> = Mutex::new(Vec::new());
    NAMES.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn op_desc_round_trips_through_tag() {
        let kind = OpKind::Collective(Collective::Reduce);
        let call =
            OpDesc::new(7, kind, DType::BF16, Some(ReduceKind::Avg), 3, 1 << 40).after(0xfedc << 48, 7);
        assert_eq!(OpDesc::from_tag(&call.tag(5)), call);
        assert_eq!(call.to_string(), "reduce #7 (1099511627776 x bfloat16, avg, root 3)");
    }

    #[test]
    fn mismatch_in_algorithm_only_names_settings() {
        let kind = OpKind::Collective(Collective::AllReduce);
        let op = |name, count| {
            let row = crate::schedule::find(Collective::AllReduce, name).unwrap();
            OpDesc::new(1, kind, DType::F32, None, 0, count).with_algorithm(AlgorithmDigest::of(row, 4))
        };
        assert!(op("ring", 8).differs_in_algorithm_only(&op("pat", 8)));
        assert!(!op("ring", 8).differs_in_algorithm_only(&op("pat", 9)));
        assert!(!op("ring", 8).differs_in_algorithm_only(&op("ring", 8)));
        let mismatch =
            crate::ErrorKind::Mismatch { rank: 0, op: op("ring", 8), other: 1, other_op: op("pat", 8) };
        assert!(crate::error::Error::new(mismatch).help().contains("UNISONO_ALGO"));
    }

    #[test]
    fn mismatch_of_earlier_operations_is_told() {
        let op = OpDesc::new(9, OpKind::AllGatherV, DType::F32, None, 0, 8);
        let other_op = op.after(1 << 48, 9);
        let error = crate::error::Error::new(crate::ErrorKind::Mismatch { rank: 0, op, other: 1, other_op });
        let text = error.to_string();
        assert!(text.contains("both called all_gather_v #9 ") && text.contains("earlier calls"), "{text}");
    }

    /// With eight bits only, one digest in 255 would collide.
    #[cfg(feature = "gpu")]
    #[test]
    fn op_desc_digests_distinguish_offsets_and_user_ops() {
        let (kind, digest) = (OpKind::Collective(Collective::AllReduce), crate::communicator::digest_words);
        let plain = OpDesc::new(7, kind, DType::F32, Some(ReduceKind::Sum), 0, 1 << 38);
        let places = (0..10_000).map(|place| plain.on_gpu(Some(digest(&[3, 64 * place]))));
        let with_user_op = (0..10_000).map(|number| plain.on_gpu(None).with_user_op(Some(digest(&[number]))));
        let calls: Vec<OpDesc> = places.chain(with_user_op).collect();
        assert!(calls.iter().all(|call| OpDesc::from_tag(&call.tag(0)) == *call && call.count == 1 << 38));
        let tags: std::collections::HashSet<_> = calls.iter().map(|call| call.tag(0).0).collect();
        assert_eq!(tags.len(), calls.len());
    }
}
