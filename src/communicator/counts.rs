//! Counts of uneven shares: where the shares begin, and a digest that ranks compare.

use crate::hash::fnv1a;

/// Returns the (offset, bytes) of consecutive shares.
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
