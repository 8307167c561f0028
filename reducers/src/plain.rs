//! Types that can be copied byte by byte, for example into the memory of a GPU.

use crate::Element;

/// A type any bytes are a value of, and that nothing happens to when it is forgotten.
///
/// # Safety
/// Just that.
pub unsafe trait Plain: 'static {}

// SAFETY: an element's trait promises it.
unsafe impl<T: Element> Plain for T {}
// SAFETY: a pointer is a number until it is read through.
unsafe impl<T: 'static> Plain for *const T {}
// SAFETY: a pointer is a number until it is read through.
unsafe impl<T: 'static> Plain for *mut T {}
// SAFETY: what holds for each holds for all.
unsafe impl<T: Plain, const COUNT: usize> Plain for [T; COUNT] {}
