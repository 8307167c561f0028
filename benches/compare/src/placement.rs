//! Placement of the cores of two ranks.
//!
//! The host moves the cores of a virtual machine. For seconds they share a cache, then they do not,
//! and small operations take two or three times as long. At other times they are two threads of one
//! core, and large operations take longer. Times of different placements must not be compared.

/// Placement of two cores relative to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Placement {
    /// They are two threads of one core.
    SameCore,
    /// They share a cache.
    SharedCache,
    /// A flag crosses between caches.
    CrossCache,
}

impl Placement {
    pub(crate) const ALL: [Self; 3] = [Self::SameCore, Self::SharedCache, Self::CrossCache];

    /// Returns the placement that a one-way flag latency in microseconds indicates.
    pub(crate) fn of(flag_latency: f64) -> Self {
        match flag_latency {
            ..=SAME_CORE_MICROS_MAX => Self::SameCore,
            ..=SHARED_CACHE_MICROS_MAX => Self::SharedCache,
            _ => Self::CrossCache,
        }
    }
}

impl std::fmt::Display for Placement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::SameCore => "same core",
            Self::SharedCache => "shared L3",
            Self::CrossCache => "cross CCX",
        })
    }
}

/// Within a core it is 0.02 to 0.03,
const SAME_CORE_MICROS_MAX: f64 = 0.035;
/// within a cache 0.05 to 0.08, between two of them 0.2 to 0.36, on the processors that were seen.
const SHARED_CACHE_MICROS_MAX: f64 = 0.12;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placement_follows_flag_latency() {
        let found = [0.025, 0.05, 0.08, 0.2, 0.36].map(Placement::of);
        assert_eq!(
            found,
            [
                Placement::SameCore,
                Placement::SharedCache,
                Placement::SharedCache,
                Placement::CrossCache,
                Placement::CrossCache
            ]
        );
    }
}
