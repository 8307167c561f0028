//! Copying and reducing on the CPU.

use crate::{DType, Finish, Op, Scalar, Source, Target};

/// target = sources[0] ⊕ sources[1] ⊕ …, in that order, then `finish`.
pub fn reduce(dtype: DType, op: Op, finish: Finish, target: Target<'_>, sources: &[Source<'_>]) {
    let _ = (dtype, op, finish, target, sources);
}

/// target = target ⊕ sources[0] ⊕ …, in that order, then `finish`.
pub fn reduce_assign(dtype: DType, op: Op, finish: Finish, target: Target<'_>, sources: &[Source<'_>]) {
    let _ = (dtype, op, finish, target, sources);
}

/// target = source · scalar. `None` for the source: scale in place.
pub fn scale(dtype: DType, scalar: Scalar, target: Target<'_>, source: Option<Source<'_>>) {
    let _ = (dtype, scalar, target, source);
}

/// target = source.
pub fn copy(target: Target<'_>, source: Source<'_>) {
    let _ = (target, source);
}

/// Sets every byte.
pub fn fill(target: Target<'_>, byte: u8) {
    let _ = (target, byte);
}
