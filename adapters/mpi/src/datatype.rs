//! Datatypes and reductions: what their handles mean.

use crate::abi::{Handle, class};
use crate::error::{Outcome, fail};
use unisono::{DType, ReduceOp};

/// The kind of a predefined datatype. Its handle holds the kind and the number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Signed = 1,
    Unsigned,
    Float,
    Complex,
    Logical,
    /// Memory without a type: it can be moved, not reduced.
    Bytes,
    /// A value with an index, for `MPI_MINLOC` and `MPI_MAXLOC`.
    Pair,
}

/// Returns the handle of a predefined datatype.
pub(crate) const fn handle(kind: Kind, bytes: usize) -> Handle {
    DATATYPE_MARK | (kind as usize) << 8 | bytes
}

/// Returns the kind and the bytes of one element of a datatype.
pub(crate) fn read(datatype: Handle) -> Outcome<(Kind, usize)> {
    let kind = match (datatype & !0xfff, datatype >> 8 & 0xf) {
        (DATATYPE_MARK, 1) => Kind::Signed,
        (DATATYPE_MARK, 2) => Kind::Unsigned,
        (DATATYPE_MARK, 3) => Kind::Float,
        (DATATYPE_MARK, 4) => Kind::Complex,
        (DATATYPE_MARK, 5) => Kind::Logical,
        (DATATYPE_MARK, 6) => Kind::Bytes,
        (DATATYPE_MARK, 7) => Kind::Pair,
        _ => return fail(class::TYPE, format!("{datatype:#x} is no datatype")),
    };
    Ok((kind, datatype & 0xff))
}

/// Returns the bytes of `count` elements.
pub(crate) fn bytes_of(datatype: Handle, count: i32) -> Outcome<usize> {
    let (_, bytes) = read(datatype)?;
    let Ok(count) = usize::try_from(count) else {
        return fail(class::COUNT, format!("the count is {count}"));
    };
    Ok(count * bytes)
}

/// Returns the element type in which a datatype is reduced. An element may be several of them.
pub(crate) fn reducible(datatype: Handle, reduction: ReduceOp) -> Outcome<DType> {
    let (kind, bytes) = read(datatype)?;
    Ok(match (kind, bytes) {
        (Kind::Signed, 1) => DType::I8,
        (Kind::Signed, 4) => DType::I32,
        (Kind::Signed, 8) => DType::I64,
        (Kind::Unsigned, 1) => DType::U8,
        (Kind::Unsigned, 4) => DType::U32,
        (Kind::Unsigned, 8) => DType::U64,
        (Kind::Float, 4) => DType::F32,
        (Kind::Float, 8) => DType::F64,
        // The sum of complex numbers is that of their parts.
        (Kind::Complex, 8) if reduction == ReduceOp::Sum => DType::F32,
        (Kind::Complex, 16) if reduction == ReduceOp::Sum => DType::F64,
        (kind, bytes) => {
            let text = format!(
                "the reduction {reduction:?} of the type {kind:?} of {} bits is not implemented; convert to \
                 another type",
                8 * bytes
            );
            return fail(class::TYPE, text);
        }
    })
}

/// Returns the reduction of an operation.
pub(crate) fn reduction(op: Handle) -> Outcome<ReduceOp> {
    match op {
        SUM => Ok(ReduceOp::Sum),
        PROD => Ok(ReduceOp::Prod),
        MIN => Ok(ReduceOp::Min),
        MAX => Ok(ReduceOp::Max),
        _ => {
            fail(class::OP, format!("operation {op:#x} is not implemented: use MPI_SUM, _PROD, _MIN or _MAX"))
        }
    }
}

pub(crate) const SUM: Handle = 0x2001;
pub(crate) const PROD: Handle = 0x2002;
pub(crate) const MIN: Handle = 0x2003;
pub(crate) const MAX: Handle = 0x2004;
const DATATYPE_MARK: Handle = 0x1000;
