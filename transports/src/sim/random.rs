//! Numbers that a seed decides.

/// A small generator (SplitMix64, Steele et al. 2014): the same seed gives the same numbers for ever.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The numbers of `seed`; those of another `stream` have nothing to do with them.
    pub fn new(seed: u64, stream: u64) -> Self {
        Self(stir(seed, stream))
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// One below `end`; zero if there is none.
    pub fn below(&mut self, end: usize) -> usize {
        (self.number() % (end as u64).max(1)) as usize
    }

    /// True once in `times` on average.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// One of these, all equally likely.
    ///
    /// # Panics
    /// If there is none.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }
}

/// Mixes one more word into a digest.
pub(super) fn stir(digest: u64, word: u64) -> u64 {
    mix((digest ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15))
}

/// The finaliser of SplitMix64.
fn mix(mixed: u64) -> u64 {
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}
