//! Cores near each other and far apart.
//!
//! A virtual machine is moved: for seconds its cores share a cache, then they do not, and everything small between two
//! ranks takes two or three times as long. Who was measured in one state is not to be compared with who was measured in
//! the other.

/// How two cores are to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cores {
    /// They share a cache.
    Near,
    /// A flag crosses between caches.
    Far,
}

impl Cores {
    /// By the microseconds of a flag from one to the other.
    pub(crate) fn of(hand_over: f64) -> Self {
        if hand_over <= NEAR_MICROS { Self::Near } else { Self::Far }
    }
}

/// Within a cache it is 0.03 to 0.08 on the processors that were seen, between two of them 0.2 to 0.36.
const NEAR_MICROS: f64 = 0.12;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_away_is_far() {
        assert_eq!(
            [0.03, 0.08, 0.2, 0.36].map(Cores::of),
            [Cores::Near, Cores::Near, Cores::Far, Cores::Far]
        );
    }
}
