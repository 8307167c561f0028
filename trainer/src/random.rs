//! Randomness as a function: the same arguments, the same number, on any rank and in any order.

/// A bijection of the 64-bit numbers whose results look random: Steele, Lea, Flood, Fast splittable pseudorandom
/// number generators, OOPSLA 2014 (SplitMix64).
pub(crate) fn splitmix(seed: u64) -> u64 {
    let mut bits = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// A seed made of several numbers; another one for any other numbers.
pub(crate) fn hash_numbers(numbers: &[u64]) -> u64 {
    hash_iter(numbers.len(), numbers.iter().copied())
}

/// As [`chain`], of `count` numbers.
pub(crate) fn hash_iter(count: usize, numbers: impl Iterator<Item = u64>) -> u64 {
    numbers.fold(splitmix(count as u64), |hash, number| splitmix(hash ^ splitmix(number)))
}

/// A number from 0, included, to 1, excluded.
pub(crate) fn unit_f64(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// A number for a text; another one, most likely, for any other text.
pub(crate) fn hash_text(text: &str) -> u64 {
    hash_iter(text.len(), text.bytes().map(u64::from))
}
