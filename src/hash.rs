//! A hash that ranks compare. It is the same in all builds.

/// Returns the 64-bit FNV-1a hash of `words`, which are bytes or larger numbers.
pub(crate) fn fnv1a(words: impl IntoIterator<Item = u64>) -> u64 {
    words.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, word| (hash ^ word).wrapping_mul(0x0100_0000_01b3))
}

/// The golden ratio in 64 bits, which is a large odd number without a pattern, for multiplicative
/// hashes.
pub(crate) const GOLDEN_RATIO: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests {
    use super::fnv1a;

    #[test]
    fn fnv1a_matches_published_values() {
        let hash = |text: &str| fnv1a(text.bytes().map(u64::from));
        assert_eq!(
            ["", "a", "foobar"].map(hash),
            [0xcbf2_9ce4_8422_2325, 0xaf63_dc4c_8601_ec8c, 0x8594_4171_f739_67e8]
        );
    }
}
