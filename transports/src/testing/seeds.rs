//! Replay of fuzz seeds by ordinary tests: the seeds themselves, and changed copies of them.

use crate::rng::Rng;
use std::path::Path;

/// A parser as a function of bytes, with its name, which is that of its folder in the corpus.
pub type Target = (&'static str, fn(&[u8]));

/// Gives each target its seeds.
///
/// # Panics
/// If a target has no seeds, and where a parser does.
pub fn parse_seeds(targets: &[Target]) {
    for (name, parse) in targets {
        seeds(name).iter().for_each(|seed| parse(seed));
    }
}

/// Gives each target `count` inputs that are made of its seeds by a few changes, always the same
/// ones.
///
/// # Panics
/// As [`parse_seeds`].
pub fn parse_changed_seeds(targets: &[Target], count: u64) {
    for (name, parse) in targets {
        let seeds = seeds(name);
        for number in 0..count {
            parse(&changed(&seeds, &mut Rng::new(number, 0)));
        }
    }
}

/// Returns the seeds of a target in the order of their names.
fn seeds(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(CORPUS).join(name);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{name} has no seeds");
    paths.iter().map(|path| std::fs::read(path).expect("a readable seed")).collect()
}

/// Returns a seed with one to four changes: other bytes, fewer or repeated ones, or those of
/// another seed.
fn changed(seeds: &[Vec<u8>], random: &mut Rng) -> Vec<u8> {
    let mut bytes = seeds[random.below(seeds.len())].clone();
    for _ in 0..1 + random.below(4) {
        let start = random.below(bytes.len() + 1);
        let end = start + random.below((bytes.len() - start).min(SPAN_MAX) + 1);
        match random.below(6) {
            0 => bytes[start..end].iter_mut().for_each(|byte| *byte = random.choose(&NOTABLE)),
            1 => bytes[start..end].iter_mut().for_each(|byte| *byte ^= 1 << random.below(8)),
            2 => drop(bytes.drain(start..end)),
            3 => bytes.truncate(start),
            4 => {
                let repeated = bytes[start..end].repeat(1 + random.below(REPEATS_MAX));
                bytes.splice(start..start, repeated);
            }
            _ => {
                let other = &seeds[random.below(seeds.len())];
                let offset = random.below(other.len() + 1);
                bytes.splice(start..end, other[offset..].iter().copied());
            }
        }
    }
    bytes
}

/// The seeds of all crates, in a folder for each target.
const CORPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/corpus");
/// Longest run of bytes that one change affects.
const SPAN_MAX: usize = 16;
const REPEATS_MAX: usize = 8;
/// Bytes that mean something in texts or as lengths.
const NOTABLE: [u8; 16] =
    [0, 1, 0x7f, 0x80, 0xfe, 0xff, b'0', b'9', b'-', b',', b'"', b'[', b'{', b'\n', b'=', b'/'];

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn changed_seeds_differ_and_repeat_by_number() {
        let seeds = [b"a seed".to_vec(), b"another one".to_vec()];
        let first: Vec<_> = (0..200).map(|number| changed(&seeds, &mut Rng::new(number, 0))).collect();
        let again: Vec<_> = (0..200).map(|number| changed(&seeds, &mut Rng::new(number, 0))).collect();
        assert_eq!(first, again);
        let distinct: std::collections::HashSet<_> = first.iter().collect();
        assert!(distinct.len() > 150, "{} of 200", distinct.len());
        assert!(first.iter().filter(|bytes| !seeds.contains(bytes)).count() > 150);
    }
}
