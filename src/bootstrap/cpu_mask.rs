//! Sets of cores that ranks may use, as text and as bits.

use unisono_transports::sys::affinity;

/// A set of a host's cores, with one bit for each core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CpuMask([u64; WORDS]);

impl CpuMask {
    /// Returns the cores that the calling thread may use.
    pub(crate) fn current() -> Self {
        Self::from_cores(&affinity::available_cpus())
    }

    /// Returns a set of the given cores. Numbers beyond the largest set of the kernel are left out.
    pub(crate) fn from_cores(cores: &[usize]) -> Self {
        let mut words = [0; WORDS];
        for &core in cores {
            if let Some(word) = words.get_mut(core / 64) {
                *word |= 1 << (core % 64);
            }
        }
        Self(words)
    }

    pub(crate) fn count(self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    pub(crate) fn union(self, other: Self) -> Self {
        Self(std::array::from_fn(|index| self.0[index] | other.0[index]))
    }

    /// Returns the words in hexadecimal. The lowest word comes first, and zero words at the end are
    /// left out.
    pub(crate) fn encode(self) -> String {
        let used = self.0.iter().rposition(|&word| word != 0).map_or(0, |last| last + 1);
        self.0[..used].iter().map(|word| format!("{word:x}")).collect::<Vec<_>>().join(" ")
    }

    pub(crate) fn decode(text: &str) -> Option<Self> {
        let mut words = [0; WORDS];
        for (index, word) in text.split_whitespace().enumerate() {
            *words.get_mut(index)? = u64::from_str_radix(word, 16).ok()?;
        }
        Some(Self(words))
    }
}

/// Words of a `cpu_set_t` of the C library.
const WORDS: usize = 1024 / 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_mask_round_trips_and_counts_cores_once() {
        for cores in [&[][..], &[0], &[63, 64], &[5, 1023, 1024]] {
            let set = CpuMask::from_cores(cores);
            assert_eq!(CpuMask::decode(&set.encode()), Some(set));
            assert_eq!(set.count(), cores.iter().filter(|&&core| core < 1024).count());
        }
        assert_eq!(CpuMask::from_cores(&[1, 2]).union(CpuMask::from_cores(&[2, 200])).count(), 3);
        assert!(CpuMask::current().count() > 0);
    }

    #[test]
    fn cpu_mask_decode_rejects_malformed_text() {
        assert_eq!(CpuMask::decode("1 x"), None);
        assert_eq!(CpuMask::decode(&"1 ".repeat(WORDS + 1)), None);
    }
}
