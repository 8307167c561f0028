//! Functions for the counts of uneven shares. They return the places of the shares, and a digest
//! that ranks compare.

use crate::hash::fnv1a;

/// Returns the offset and the length in bytes of each of the consecutive shares.
pub(crate) fn displacements(counts: &[usize], element: usize) -> Vec<(usize, usize)> {
    let mut offset = 0;
    let place = |&count: &usize| {
        let place = (offset, count * element);
        offset += count * element;
        place
    };
    counts.iter().map(place).collect()
}

/// Returns a digest of the counts.
pub(crate) fn digest_words(counts: &[usize]) -> u64 {
    fnv1a(counts.iter().map(|&count| count as u64))
}

/// Returns the shares of `bytes` with their offsets in elements. `counts` are elements of `element`
/// bytes.
pub(in crate::communicator) fn split<'a>(
    bytes: &'a [u8],
    counts: &[usize],
    element: usize,
) -> Vec<(usize, &'a [u8])> {
    let places = displacements(counts, element).into_iter();
    places.map(|(offset, length)| (offset / element, &bytes[offset..offset + length])).collect()
}

/// Returns the shares of `bytes` for writing. `counts` are elements of `element` bytes.
pub(in crate::communicator) fn split_mut<'a>(
    mut bytes: &'a mut [u8],
    counts: &[usize],
    element: usize,
) -> Vec<&'a mut [u8]> {
    let share = |&count: &usize| {
        let (share, tail) = std::mem::take(&mut bytes).split_at_mut(count * element);
        bytes = tail;
        share
    };
    counts.iter().map(share).collect()
}
