//! Errors for ranks that disagree about an operation.
//!
//! Every disagreement is found by comparing what two ranks say of the same operation: the tag of a
//! message, the tag of a window, the flag of a slot, a wait report, or a length. All of them become
//! errors here.

use crate::error::{Error, ErrorKind};
use crate::op_desc::OpDesc;
use crate::schedule::Rank;
use unisono_transports::Tag;

/// Returns the error for `rank` that called `op` where `peer` called `peer_op`.
pub(super) fn op_mismatch(rank: Rank, op: OpDesc, peer: Rank, peer_op: OpDesc) -> Error {
    Error::new(ErrorKind::Mismatch { rank, op, other: peer, other_op: peer_op })
}

/// Returns the error for a tag of `peer` that differs from the tag that `rank` expected.
///
/// Tags of the same operation differ only in their slice. That is no mismatch of calls but a
/// violation of the protocol.
#[cold]
pub(super) fn tag_mismatch(expected: &Tag, found: &Tag, rank: Rank, peer: Rank) -> Error {
    let (op, peer_op) = (OpDesc::from_tag(expected), OpDesc::from_tag(found));
    if op != peer_op {
        return op_mismatch(rank, op, peer, peer_op);
    }
    let what = format!("slice {:#x} of {op} where {:#x} was expected", found.0[3], expected.0[3]);
    Error::new(ErrorKind::ProtocolViolation { peer, what })
}

/// Returns the error for a message of `sent` bytes where the buffers of `receiver` expect
/// `expected` bytes.
#[cold]
pub(super) fn count_mismatch(sender: Rank, sent: usize, receiver: Rank, expected: usize) -> Error {
    let (sent, expected) = (sent as u64, expected as u64);
    Error::new(ErrorKind::CountMismatch { sender, sent, receiver, expected })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op_desc::OpKind;
    use unisono_reducers::DType;

    fn op(count: u64) -> OpDesc {
        OpDesc::new(3, OpKind::AllGatherV, DType::F32, None, 0, count)
    }

    #[test]
    fn tag_mismatch_names_both_operations() {
        let error = tag_mismatch(&op(8).tag(0), &op(9).tag(0), 1, 2);
        let expected = ErrorKind::Mismatch { rank: 1, op: op(8), other: 2, other_op: op(9) };
        assert_eq!(*error.kind(), expected);
    }

    #[test]
    fn tag_mismatch_of_slices_is_protocol_violation() {
        let error = tag_mismatch(&op(8).tag(1), &op(8).tag(2), 1, 2);
        assert!(matches!(error.kind(), ErrorKind::ProtocolViolation { peer: 2, .. }), "{error}");
    }
}
