//! Tests of token files of other programs, and of damaged ones.

use super::*;
use std::fs;
use std::path::{Path, PathBuf};
use unisono_nn::random::splitmix;
use unisono_parallel::context_parallel::SequenceChunk;

/// Numbers that repeat for a seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = splitmix(self.0);
        (self.0 >> 16) as usize % limit.max(1)
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.below(256) as u8).collect()
    }
}

/// Kinds of token files, as their programs write them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Bytes,
    NanoGpt,
    Two,
    Four,
    LlmcGpt2,
    LlmcLlama3,
    MegatronInt32,
    MegatronUint16,
}

const KINDS: [Kind; 8] = [
    Kind::Bytes,
    Kind::NanoGpt,
    Kind::Two,
    Kind::Four,
    Kind::LlmcGpt2,
    Kind::LlmcLlama3,
    Kind::MegatronInt32,
    Kind::MegatronUint16,
];

const COUNT: usize = 6000;

impl Kind {
    fn vocabulary(self) -> u32 {
        match self {
            Self::Bytes => 200,
            Self::NanoGpt | Self::Two | Self::LlmcGpt2 | Self::MegatronUint16 => 50_257,
            Self::Four | Self::LlmcLlama3 | Self::MegatronInt32 => 128_256,
        }
    }

    fn extension(self) -> &'static str {
        match self {
            Self::Bytes => "u8",
            Self::Two => "u16",
            Self::Four => "u32",
            _ => "bin",
        }
    }

    fn width(self) -> usize {
        match self {
            Self::Bytes => 1,
            Self::NanoGpt | Self::Two | Self::LlmcGpt2 | Self::MegatronUint16 => 2,
            Self::Four | Self::LlmcLlama3 | Self::MegatronInt32 => 4,
        }
    }

    fn header(self) -> Vec<u8> {
        let (magic, version) = match self {
            Self::LlmcGpt2 => (20_240_520u32, 1u32),
            Self::LlmcLlama3 => (20_240_801, 7),
            _ => return Vec::new(),
        };
        let words = [magic, version, COUNT as u32].into_iter().chain([0; 253]);
        words.flat_map(u32::to_le_bytes).collect()
    }

    /// Returns the index of Megatron, of sequences of different lengths.
    fn index(self) -> Option<Vec<u8>> {
        let dtype = match self {
            Self::MegatronInt32 => 4,
            Self::MegatronUint16 => 8,
            _ => return None,
        };
        let sizes: Vec<usize> = (0..120).map(|index| if index % 2 == 0 { 30 } else { 70 }).collect();
        assert_eq!(sizes.iter().sum::<usize>(), COUNT);
        let offsets = sizes.iter().scan(0, |end, size| {
            let start = *end;
            *end += size * self.width();
            Some(start as u64)
        });
        let mut index = [&b"MMIDIDX\0\0"[..], &1u64.to_le_bytes(), &[dtype]].concat();
        index.extend([sizes.len(), sizes.len() + 1].iter().flat_map(|count| (*count as u64).to_le_bytes()));
        index.extend(sizes.iter().flat_map(|size| (*size as u32).to_le_bytes()));
        index.extend(offsets.flat_map(u64::to_le_bytes));
        index.extend((0..=sizes.len() as u64).flat_map(u64::to_le_bytes));
        Some(index)
    }
}

/// A token file, and the index beside it.
#[derive(Clone)]
struct Files {
    tokens: Vec<u8>,
    index: Option<Vec<u8>>,
    extension: &'static str,
}

impl Files {
    fn new(kind: Kind, tokens: &[u32]) -> Self {
        let each = tokens.iter().flat_map(|token| token.to_le_bytes()[..kind.width()].to_vec());
        let tokens = kind.header().into_iter().chain(each).collect();
        Self { tokens, index: kind.index(), extension: kind.extension() }
    }

    fn write(&self, folder: &Path) -> PathBuf {
        let path = folder.join("tokens").with_extension(self.extension);
        fs::write(&path, &self.tokens).unwrap();
        let index = path.with_extension("idx");
        match &self.index {
            Some(bytes) => fs::write(index, bytes).unwrap(),
            None => drop(fs::remove_file(index)),
        }
        path
    }

    /// Reads all tokens, in windows as training does.
    fn read(&self, folder: &Path, vocabulary: u32) -> unisono_nn::Result<Vec<u32>> {
        let windows = TokenWindows::new(TokenFile::open(&self.write(folder), vocabulary)?, 16)?;
        let samples: Vec<u64> = (0..windows.count()).collect();
        Ok(windows.batch(&samples, SequenceChunk::WHOLE)?.inputs)
    }
}

fn tokens_of(kind: Kind) -> Vec<u32> {
    let mut numbers = Numbers(kind as u64 + 1);
    (0..COUNT).map(|_| numbers.below(kind.vocabulary() as usize) as u32).collect()
}

/// Damages files, and returns the largest number of tokens that may differ then: those that were
/// overwritten.
fn damage(files: &mut Files, kind: Kind, numbers: &mut Numbers) -> usize {
    let (size, start) = (files.tokens.len(), numbers.below(files.tokens.len()));
    let few = 1 + numbers.below(9);
    match numbers.below(if files.index.is_some() { 12 } else { 9 }) {
        0 => files.tokens.truncate(start),
        1 => {
            let more = numbers.bytes(few);
            files.tokens.extend(more);
            return few;
        }
        2 => drop(files.tokens.drain(start..(start + few).min(size))),
        3 => {
            let more = numbers.bytes(few);
            files.tokens.splice(start..start, more);
        }
        4 => {
            let place = numbers.below(size.min(1024));
            files.tokens[place] ^= 1 << numbers.below(8);
        }
        5 => {
            let noise = numbers.bytes(64);
            files.tokens[..64].copy_from_slice(&noise);
            return 64;
        }
        6 => {
            let end = (start + 512).min(size);
            files.tokens[start..end].fill(0);
            return 512;
        }
        7 => files.extension = ["u8", "u16", "u32", "bin", "npy", "idx"][numbers.below(6)],
        8 => {
            // A file of bytes may hold any text.
            let other = if kind == Kind::Bytes { 4 * numbers.below(2) } else { numbers.below(5) };
            files.tokens = match other {
                0 => b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 1048576\n".to_vec(),
                1 => b"<!DOCTYPE html><html><head><title>401</title></head></html>".repeat(30),
                2 => "some words of a text, line by line\n".repeat(100).into_bytes(),
                3 => [b"\x93NUMPY\x01\x00v\x00".to_vec(), files.tokens.clone()].concat(),
                _ => Vec::new(),
            }
        }
        9 => files.index = None,
        10 => {
            let index = files.index.as_mut().expect("an index");
            let end = numbers.below(index.len());
            index.truncate(end);
        }
        _ => {
            let index = files.index.as_mut().expect("an index");
            let end = if numbers.below(2) == 0 { 34 } else { index.len() };
            let place = numbers.below(end);
            index[place] ^= 1 << numbers.below(8);
        }
    }
    few + usize::from(kind == Kind::Bytes)
}

/// Returns true if `found` is a part of `whole` with at most `changed` other tokens, of which some
/// may be missing or more.
fn is_nearly(found: &[u32], original: &[u32], changed: usize) -> bool {
    let same = found.iter().zip(original).take_while(|(left, right)| left == right).count();
    let (found, original) = (&found[same..], &original[same..]);
    // After the damage, the rest follows at nearly the same place.
    found.len() <= changed + 1
        || (0..=changed + 10).any(|skip| {
            (0..=changed + 10).any(|lost| {
                let (Some(found), Some(original)) = (found.get(skip..), original.get(lost..)) else {
                    return false;
                };
                found.iter().zip(original).all(|(left, right)| left == right)
                    && original.len() + 16 >= found.len()
            })
        })
}

#[test]
fn token_files_of_other_programs_are_read() {
    let folder = tempfile::tempdir().unwrap();
    for kind in KINDS {
        let tokens = tokens_of(kind);
        let found = Files::new(kind, &tokens).read(folder.path(), kind.vocabulary()).unwrap();
        assert!(found.len() >= COUNT - 16 && found == tokens[..found.len()], "{kind:?}");
    }
}

#[test]
fn damaged_token_files_never_train_on_garbage() {
    let folder = tempfile::tempdir().unwrap();
    for kind in KINDS {
        let (tokens, mut numbers) = (tokens_of(kind), Numbers(1000 + kind as u64));
        let mut refused = 0;
        for variant in 0..200 {
            let mut files = Files::new(kind, &tokens);
            let changed = damage(&mut files, kind, &mut numbers);
            match files.read(folder.path(), kind.vocabulary()) {
                Ok(found) => assert!(
                    is_nearly(&found, &tokens, changed),
                    "{kind:?}, variant {variant}: {} tokens, {} bytes of .{}",
                    found.len(),
                    files.tokens.len(),
                    files.extension
                ),
                Err(error) => {
                    refused += 1;
                    let text = error.to_string();
                    let is_named = text.contains("tokens.") || text.contains("do not make one window");
                    assert!(is_named && text.len() < 700, "{kind:?}, variant {variant}: {text}");
                }
            }
        }
        assert!(refused > 20, "{kind:?}: {refused} of 200");
    }
}

#[test]
fn wide_tokens_under_a_two_byte_name_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = tokens_of(Kind::Two);
    for (width, words) in [(4, "four bytes each"), (8, "eight bytes each")] {
        for extension in ["bin", "u16"] {
            let each = tokens.iter().flat_map(|&token| u64::from(token).to_le_bytes()[..width].to_vec());
            let files = Files { tokens: each.collect(), index: None, extension };
            let error = files.read(folder.path(), 50_257).unwrap_err().to_string();
            assert!(error.contains(words) && error.contains(".u32"), "{error}");
        }
    }
    // Few kinds of tokens in a regular order are no wide ones.
    let words = (0..4000).flat_map(|number: u16| [number % 12, 0]).flat_map(u16::to_le_bytes).collect();
    let files = Files { tokens: words, index: None, extension: "bin" };
    assert!(files.read(folder.path(), 12).is_ok());
}

#[test]
fn vocabulary_beyond_the_width_of_a_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (kind, vocabulary, words) in
        [(Kind::NanoGpt, 128_256, ".u32 has four"), (Kind::Bytes, 257, ".u16 has two")]
    {
        let files = Files::new(kind, &tokens_of(kind));
        let error = files.read(folder.path(), vocabulary).unwrap_err().to_string();
        assert!(error.contains(&format!("a vocabulary of {vocabulary}")) && error.contains(words), "{error}");
    }
    let error = Files::new(Kind::LlmcLlama3, &tokens_of(Kind::LlmcLlama3));
    let error = error.read(folder.path(), 100_000).unwrap_err().to_string();
    assert!(error.contains("the vocabulary has 100000") && error.contains("token "), "{error}");
}
