//! Permutation of any number of samples in constant memory.

use unisono_nn::random::{hash_numbers, splitmix};

/// Permutation of the numbers below `count`, computed on demand.
///
/// A balanced Feistel network over the next power of four, with cycle walking: Black, Rogaway,
/// "Ciphers with arbitrary finite domains", CT-RSA 2002.
#[derive(Clone, Debug)]
pub struct Permutation {
    count: u64,
    half_bits: u32,
    keys: [u64; ROUNDS],
}

impl Permutation {
    /// Selects a permutation of the numbers below `count` by `seed`.
    pub fn new(count: u64, seed: u64) -> Self {
        let bits = u64::BITS - count.saturating_sub(1).leading_zeros();
        let keys = std::array::from_fn(|round| hash_numbers(&[seed, round as u64]));
        Self { count, half_bits: bits.div_ceil(2).max(1), keys }
    }

    /// Returns the number at `index`.
    ///
    /// # Panics
    /// Panics if `index` is not below `count`.
    pub fn at(&self, index: u64) -> u64 {
        assert!(index < self.count, "place {index} of {}", self.count);
        let mut value = self.feistel(index);
        // The walk ends, because its cycle leads back to `index`, which is below the count.
        while value >= self.count {
            value = self.feistel(value);
        }
        value
    }

    fn feistel(&self, value: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        let halves = (value >> self.half_bits, value & mask);
        let round = |(left, right): (u64, u64), key: &u64| (right, left ^ (splitmix(right ^ key) & mask));
        let (left, right) = self.keys.iter().fold(halves, round);
        left << self.half_bits | right
    }
}

/// Four rounds give a pseudorandom permutation (Luby, Rackoff, 1988); narrow halves need more
/// rounds.
const ROUNDS: usize = 8;
