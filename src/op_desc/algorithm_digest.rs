//! Computes the digest of an algorithm, which the fingerprint of an operation contains, and finds
//! the name of an algorithm by its digest.
//!
//! The digest of a built-in algorithm is made of its name. The digest of a caller's algorithm is
//! made of its programs, so that ranks notice if they have different algorithms under one name. It
//! does not depend on other settings of a process, because all ranks must get the same digest. Two
//! algorithms of callers have the same digest with a probability of 1 in 65,000, or 1 in 256 on
//! GPUs, which have only 8 of the 16 bits. Then errors name both.

use crate::hash::{GOLDEN_RATIO, fnv1a};
use crate::schedule::{Algorithm, Chunk, ChunkRef, Collective, GroupSpec, LaneProgram, Program, Step, find};
use std::borrow::Cow;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A digest of 16 bits. The high byte is zero for built-in algorithms, and only for these.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct AlgorithmDigest(u16);

impl AlgorithmDigest {
    /// Returns the digest of `algorithm` for a group of `ranks` ranks.
    pub(crate) fn of(algorithm: &Algorithm, ranks: usize) -> Self {
        let of_this = |known: &&OwnAlgorithm| known.address == address(algorithm) && known.ranks == ranks;
        let known = own_algorithms().iter().find(of_this).map(|known| known.digest);
        known.unwrap_or_else(|| Self::built_in(algorithm.name))
    }

    pub(super) fn from_bytes(bytes: [u8; 2]) -> Self {
        Self(u16::from_le_bytes(bytes))
    }

    /// Returns the low and the high byte.
    pub(crate) fn bytes(self) -> [u8; 2] {
        self.0.to_le_bytes()
    }

    /// Returns true if the algorithm is known not to be built in.
    pub(super) fn is_own(self) -> bool {
        self.bytes()[1] != 0
    }

    /// Returns the digest of a built-in algorithm. It is the third byte of the FNV-1a hash of its
    /// name, which is unique among all names.
    fn built_in(name: &str) -> Self {
        let hash =
            name.bytes().fold(0x811c_9dc5u32, |hash, byte| (hash ^ byte as u32).wrapping_mul(0x0100_0193));
        Self::from_bytes([(hash >> 16) as u8, 0])
    }

    /// Returns the digest of a caller's algorithm. Its low byte differs from those of all built-in
    /// algorithms of the collective.
    fn own(algorithm: &Algorithm, programs: u64) -> Self {
        let mut mixed = programs;
        loop {
            mixed = mix(mixed);
            let low = Self::from_bytes([mixed as u8, 0]);
            if built_in_name(algorithm.collective, low).is_none() {
                let high = 1 + (mixed >> 32) % u64::from(u8::MAX);
                return Self::from_bytes([mixed as u8, high as u8]);
            }
        }
    }

    /// Returns the names that have this digest. On GPUs, only the low bytes are compared.
    pub(super) fn name(self, collective: Collective, on_gpu: bool) -> Option<Cow<'static, str>> {
        let is_this =
            |digest: Self| if on_gpu { digest.bytes()[0] == self.bytes()[0] } else { digest == self };
        let mut names: Vec<&'static str> = own_algorithms()
            .iter()
            .filter(|known| known.collective == collective && is_this(known.digest))
            .map(|known| known.name)
            .collect();
        names.sort_unstable();
        names.dedup();
        match names[..] {
            [] if self.is_own() => None,
            [] => built_in_name(collective, self).map(Cow::Borrowed),
            [name] => Some(Cow::Borrowed(name)),
            _ => Some(Cow::Owned(names.join(" or "))),
        }
    }
}

impl fmt::Debug for AlgorithmDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#06x}", self.0)
    }
}

/// A caller's own algorithm, as a group of some number of ranks runs it.
struct OwnAlgorithm {
    /// Tells algorithms of one name apart.
    address: usize,
    ranks: usize,
    collective: Collective,
    name: &'static str,
    digest: AlgorithmDigest,
}

/// Registers the programs and the name of a caller's algorithm, for fingerprints in groups of
/// `ranks` ranks. Returns false if the algorithm is built in.
pub(crate) fn register_algorithm(algorithm: &'static Algorithm, ranks: usize) -> bool {
    let programs = digest_of_programs(algorithm, ranks);
    let built_in = find(algorithm.collective, algorithm.name);
    if built_in.is_some_and(|row| digest_of_programs(row, ranks) == programs) {
        return false;
    }
    let address = address(algorithm);
    let mut known = own_algorithms();
    if !known.iter().any(|entry| (entry.address, entry.ranks) == (address, ranks)) {
        let Algorithm { collective, name, .. } = *algorithm;
        let digest = AlgorithmDigest::own(algorithm, programs);
        known.push(OwnAlgorithm { address, ranks, collective, name, digest });
    }
    true
}

/// Returns the callers' own algorithms in this process.
fn own_algorithms() -> MutexGuard<'static, Vec<OwnAlgorithm>> {
    static OWN: Mutex<Vec<OwnAlgorithm>> = Mutex::new(Vec::new());
    OWN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn address(algorithm: &Algorithm) -> usize {
    std::ptr::from_ref(algorithm).addr()
}

fn built_in_name(collective: Collective, digest: AlgorithmDigest) -> Option<&'static str> {
    let mut rows = Algorithm::ALL.iter().filter(|row| row.collective == collective);
    rows.find(|row| AlgorithmDigest::built_in(row.name) == digest).map(|row| row.name)
}

/// Returns a digest of the name and of the programs of all ranks.
fn digest_of_programs(algorithm: &Algorithm, ranks: usize) -> u64 {
    let spec = GroupSpec::new(ranks);
    let mut words: Vec<u64> = algorithm.name.bytes().map(u64::from).collect();
    words.extend([algorithm.collective as u64, algorithm.peer_access as u64]);
    if (algorithm.supports)(&spec) {
        words.push((algorithm.chunks_per_share)(&spec) as u64);
        (0..ranks).for_each(|rank| push_program(&mut words, &(algorithm.build)(&spec, rank)));
    }
    fnv1a(words)
}

fn push_program(words: &mut Vec<u64>, Program { lane_programs, scratch, window }: &Program) {
    words.extend([lane_programs.len(), *scratch, *window].map(|number| number as u64));
    for LaneProgram { lane, steps } in lane_programs {
        words.extend([*lane as u64, steps.len() as u64]);
        steps.iter().for_each(|step| push_step(words, step));
    }
}

fn push_step(words: &mut Vec<u64>, step: &Step) {
    match step {
        Step::Send { peer, chunks } => {
            words.extend([0, *peer as u64]);
            push_chunks(words, chunks);
        }
        Step::Recv { peer, into } => {
            words.extend([1, *peer as u64]);
            push_chunks(words, into);
        }
        Step::RecvReduce { peer, with, into, finish } => {
            words.extend([2, *peer as u64, u64::from(*finish)]);
            push_chunks(words, with);
            push_chunks(words, into);
        }
        Step::Copy { from, into } => {
            words.push(3);
            push_places(words, &[*from, *into]);
        }
        Step::Reduce { from, into, finish } => {
            words.extend([4, u64::from(*finish)]);
            push_places(words, from);
            push_places(words, &[*into]);
        }
        Step::Signal => words.push(5),
        Step::Wait { peer, signals } => words.extend([6, *peer as u64, u64::from(*signals)]),
    }
}

fn push_chunks(words: &mut Vec<u64>, chunks: &[Chunk]) {
    words.push(chunks.len() as u64);
    words.extend(chunks.iter().map(word_of));
}

fn push_places(words: &mut Vec<u64>, places: &[ChunkRef]) {
    words.push(places.len() as u64);
    words.extend(places.iter().flat_map(|place| [place.rank as u64, word_of(&place.chunk)]));
}

fn word_of(chunk: &Chunk) -> u64 {
    (chunk.space as u64) << 32 | u64::from(chunk.index)
}

/// Spreads every bit over all bits: the finalizer of MurmurHash3.
fn mix(word: u64) -> u64 {
    let word = (word ^ word >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let word = (word ^ word >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    (word ^ word >> 33).wrapping_add(GOLDEN_RATIO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn named(name: String) -> &'static Algorithm {
        let ring = find(Collective::AllReduce, "ring").unwrap();
        Algorithm { name: name.leak(), ..*ring }.leak()
    }

    #[test]
    fn built_in_digests_are_unique_among_all_names() {
        let digest = |row: &Algorithm| AlgorithmDigest::of(row, 4);
        for a in Algorithm::ALL {
            for b in Algorithm::ALL {
                assert!(a.name == b.name || digest(a) != digest(b), "{} and {}", a.name, b.name);
            }
        }
    }

    /// Names that differ in the last digit, for which the digest of the name alone collides.
    #[test]
    fn series_of_own_names_have_digests_of_their_own() {
        let mut digests = HashSet::new();
        let mut pairs = 0;
        for series in 0..40 {
            let digests_before = digests.len();
            for digit in 2..10 {
                let algorithm = named(format!("series_{series}_level_{digit}"));
                assert!(register_algorithm(algorithm, 4));
                let digest = AlgorithmDigest::of(algorithm, 4);
                assert!(digest.is_own() && built_in_name(Collective::AllReduce, digest).is_none());
                assert!(digest.name(Collective::AllReduce, false).unwrap().contains(algorithm.name));
                digests.insert(digest.bytes());
            }
            pairs += 8 - (digests.len() - digests_before);
        }
        assert!(pairs <= 5, "{pairs} of 320 algorithms share a digest of 16 bits");
    }

    #[test]
    fn digest_tells_programs_of_one_name_apart() {
        let (algorithm, other) = (named("same".to_owned()), named("same".to_owned()));
        register_algorithm(algorithm, 3);
        let longer = Algorithm { chunks_per_share: &|spec| spec.ranks + 1, ..*named("same".to_owned()) };
        assert_eq!(digest_of_programs(algorithm, 3), digest_of_programs(other, 3));
        assert_ne!(digest_of_programs(algorithm, 3), digest_of_programs(&longer, 3));
        assert_ne!(digest_of_programs(algorithm, 3), digest_of_programs(algorithm, 4));
        let ring = find(Collective::AllReduce, "ring").unwrap();
        assert!(!register_algorithm(ring, 3) && !AlgorithmDigest::of(ring, 3).is_own());
        let pretender = Algorithm { name: "ring", ..longer }.leak();
        assert!(register_algorithm(pretender, 3) && AlgorithmDigest::of(pretender, 3).is_own());
    }

    #[test]
    fn own_algorithms_with_one_digest_are_both_named() {
        let digest = AlgorithmDigest::from_bytes([7, 200]);
        for (address, name) in [(1, "one"), (2, "two")] {
            let collective = Collective::Barrier;
            own_algorithms().push(OwnAlgorithm { address, ranks: 9, collective, name, digest });
        }
        assert_eq!(digest.name(Collective::Barrier, false).unwrap(), "one or two");
        assert_eq!(digest.name(Collective::Scan, false), None);
    }
}
