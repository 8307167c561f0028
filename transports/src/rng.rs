//! Random numbers from a seed.

/// A small generator (SplitMix64, Steele et al. 2014): the same seed always gives the same numbers.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Creates the generator of `seed`. Numbers of different `stream`s are independent.
    pub fn new(seed: u64, stream: u64) -> Self {
        Self(mix(seed, stream))
    }

    /// Returns any number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        finalize(self.0)
    }

    /// Returns a number below `end`, or zero if `end` is zero.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next_u64() % (end as u64).max(1)) as usize
    }

    /// Returns true once in `times` on average.
    pub fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// Returns one of the choices, all equally likely.
    ///
    /// # Panics
    /// Panics if there is none.
    pub fn choose<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }
}

/// Mixes one more word into a digest.
pub(crate) fn mix(digest: u64, word: u64) -> u64 {
    finalize((digest ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15))
}

/// The finalizer of SplitMix64.
fn finalize(mixed: u64) -> u64 {
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}
