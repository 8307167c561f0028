//! Cores near each other and far apart.
//!
//! A virtual machine is moved: for seconds its cores share a cache, then they do not, and everything small between two
//! ranks takes two or three times as long; or they are two threads of one core, and everything large does. Who was measured in
//! one state is not to be compared with who was measured in another.

/// How two cores are to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cores {
    /// They are two threads of one core.
    Twins,
    /// They share a cache.
    Near,
    /// A flag crosses between caches.
    Far,
}

impl Cores {
    pub(crate) const ALL: [Self; 3] = [Self::Twins, Self::Near, Self::Far];

    /// By the microseconds of a flag from one to the other.
    pub(crate) fn of(hand_over: f64) -> Self {
        match hand_over {
            ..=TWINS_MICROS => Self::Twins,
            ..=NEAR_MICROS => Self::Near,
            _ => Self::Far,
        }
    }
}

impl std::fmt::Display for Cores {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Twins => "one core",
            Self::Near => "near",
            Self::Far => "far",
        })
    }
}

/// Within a core it is 0.02 to 0.03,
const TWINS_MICROS: f64 = 0.035;
/// within a cache 0.05 to 0.08, between two of them 0.2 to 0.36, on the processors that were seen.
const NEAR_MICROS: f64 = 0.12;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_shares_less_is_farther() {
        let found = [0.025, 0.05, 0.08, 0.2, 0.36].map(Cores::of);
        assert_eq!(found, [Cores::Twins, Cores::Near, Cores::Near, Cores::Far, Cores::Far]);
    }
}
