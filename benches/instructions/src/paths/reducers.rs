//! Reductions and copies, in the cache.

use super::{Iteration, PageAligned};
use std::hint::black_box;
use unisono_reducers::{
    Element, PostOp, ReduceKind, Source, Store, as_bytes, as_bytes_mut, copy_to, reduce_to,
};

/// The sum of `SOURCES` buffers of `COUNT` elements.
pub(super) fn sum<T: Element, const COUNT: usize, const SOURCES: usize>() -> Iteration {
    let operands: [_; SOURCES] = std::array::from_fn(|_| PageAligned::<T, COUNT>::of(T::from_f64(1.0)));
    let mut result = PageAligned::<T, COUNT>::of(T::from_f64(0.0));
    Box::new(move || {
        let sources = operands.each_ref().map(|operand| Source::from(as_bytes(&operand.0)));
        let target = as_bytes_mut(&mut result.0).into();
        reduce_to(Store::Cached, black_box(T::DTYPE), ReduceKind::Sum, PostOp::Identity, target, &sources);
        assert_eq!(as_bytes(&result.0[..1]), as_bytes(&[T::from_f64(SOURCES as f64)]));
    })
}

/// A copy.
pub(super) fn copy<const BYTES: usize>() -> Iteration {
    let (source, mut target) = (PageAligned::<u8, BYTES>::of(7), PageAligned::<u8, BYTES>::of(0));
    Box::new(move || copy_to(Store::Cached, target.0[..].as_mut().into(), black_box(source.0[..].into())))
}
