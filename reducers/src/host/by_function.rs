//! Reductions by a function of the caller.
//!
//! Operands may be memory that peers write, which is never a Rust reference. They are copied into
//! blocks of elements first, which the function gets as slices.

use crate::host::copy;
use crate::{Element, Source, Target, as_bytes, as_bytes_mut};

/// The target becomes `first` ⊕ the first of `rest` ⊕ …, in that order. `None` for `first` is the
/// target itself.
///
/// `combine(left, right)` computes left = left ⊕ right for every pair of elements. It is called
/// with parts of the operands, all of the same length.
///
/// # Panics
/// If lengths differ or are no multiple of the element's, or if `combine` panics.
pub fn reduce_by<T: Element>(
    combine: &dyn Fn(&mut [T], &[T]),
    mut target: Target<'_>,
    first: Option<Source<'_>>,
    rest: &[Source<'_>],
) {
    let (bytes, element) = (target.len(), size_of::<T>());
    assert!(bytes.is_multiple_of(element), "{bytes} bytes are no whole number of {}", T::DTYPE);
    let lengths = first.iter().chain(rest).map(Source::len);
    assert!(lengths.into_iter().all(|length| length == bytes), "operands as long as the target");
    let (mut left, mut right) = ([T::default(); BLOCK], [T::default(); BLOCK]);
    for begin in (0..bytes).step_by(BLOCK * element) {
        let range = begin..(begin + BLOCK * element).min(bytes);
        let count = range.len() / element;
        let (left, right) = (&mut left[..count], &mut right[..count]);
        let operand = match first {
            Some(first) => first.slice(range.clone()),
            None => super::as_source(&mut target).slice(range.clone()),
        };
        copy(as_bytes_mut(left).into(), operand);
        for source in rest {
            copy(as_bytes_mut(right).into(), source.slice(range.clone()));
            combine(left, right);
        }
        copy(target.slice(range), as_bytes(left).into());
    }
}

/// Elements of a block: two blocks of the longest elements fit into the L1 cache.
const BLOCK: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_are_combined_in_order_at_any_length() {
        // Not commutative: the composition of x -> a x + b, first left, then right.
        let compose = |left: &mut [[u32; 2]], right: &[[u32; 2]]| {
            for (left, right) in left.iter_mut().zip(right) {
                *left =
                    [left[0].wrapping_mul(right[0]), left[1].wrapping_mul(right[0]).wrapping_add(right[1])];
            }
        };
        let as_pairs = |values: &[u64]| -> Vec<[u32; 2]> {
            values.iter().map(|&value| [value as u32, (value >> 32) as u32]).collect()
        };
        let combine = |left: &mut [u64], right: &[u64]| {
            let mut pairs = as_pairs(left);
            compose(&mut pairs, &as_pairs(right));
            for (left, [a, b]) in left.iter_mut().zip(pairs) {
                *left = u64::from(a) | u64::from(b) << 32;
            }
        };
        for length in [0, 1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7] {
            let operand = |seed: u64| -> Vec<u64> {
                (0..length as u64).map(|index| (index + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect()
            };
            let operands = [operand(1), operand(2), operand(3)];
            let sources: Vec<Source<'_>> = operands.iter().map(|operand| as_bytes(operand).into()).collect();
            let mut expected = operands[0].clone();
            combine(&mut expected, &operands[1]);
            combine(&mut expected, &operands[2]);
            let mut found = vec![0; length];
            reduce_by::<u64>(&combine, as_bytes_mut(&mut found).into(), Some(sources[0]), &sources[1..]);
            assert_eq!(found, expected, "{length}");
            found.copy_from_slice(&operands[0]);
            reduce_by::<u64>(&combine, as_bytes_mut(&mut found).into(), None, &sources[1..]);
            assert_eq!(found, expected, "{length} in place");
        }
    }
}
