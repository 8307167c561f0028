//! Stateless random numbers: equal arguments give equal numbers, on any rank and in any order.

/// SplitMix64, a bijection of 64-bit numbers with random-looking results: Steele, Lea, Flood, "Fast
/// splittable pseudorandom number generators", OOPSLA 2014.
pub fn splitmix(seed: u64) -> u64 {
    let mut bits = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// Hashes numbers to a seed.
pub fn hash_numbers(numbers: &[u64]) -> u64 {
    hash_iter(numbers.len(), numbers.iter().copied())
}

/// Hashes `count` numbers, as [`hash_numbers`] does.
pub fn hash_iter(count: usize, numbers: impl Iterator<Item = u64>) -> u64 {
    numbers.fold(splitmix(count as u64), |hash, number| splitmix(hash ^ splitmix(number)))
}

/// Returns a number in [0, 1) from random bits.
pub fn unit_f64(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// Hashes a text.
pub fn hash_text(text: &str) -> u64 {
    hash_iter(text.len(), text.bytes().map(u64::from))
}
