//! Recognizes how a file holds tokens: alone, behind the header of llm.c, or beside the index of
//! Megatron.

use super::TokenWidth;
use crate::file_kind::{self, START};
use std::collections::HashSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use unisono_nn::error::{Error, Result};
use unisono_transports::sys::mapped_file::MappedFile;

/// Place and size of the tokens in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TokenLayout {
    /// Offset of the first token in bytes.
    pub(super) start: usize,
    pub(super) width: TokenWidth,
    /// Number of tokens.
    pub(super) count: usize,
}

impl TokenLayout {
    /// Recognizes the layout of the file at `path`. A header counts before the extension.
    ///
    /// # Errors
    /// Names what the file is, if it holds no tokens or other ones than its name says, and the
    /// numbers that do not fit together in a damaged file.
    pub(super) fn of(path: &Path, mapped: &MappedFile) -> Result<Self> {
        let failed = |what: String| Error::file(path, what);
        let width = TokenWidth::from_path(path)?;
        let bytes = mapped.bytes();
        let start = copy(mapped, 0, START.min(bytes)).map_err(|what| failed(what.clone()))?;
        if let Some(kind) = file_kind::recognize(&start).filter(|_| is_foreign(&start, width)) {
            return Err(failed(format!("this is no token file, but {kind}")));
        }
        // Any bytes are tokens of one byte, also printed text, so nothing else can be checked.
        if width == TokenWidth::One {
            return Ok(Self { start: 0, width, count: bytes });
        }
        if start.len() >= MIN_TEXT && file_kind::is_ascii_text(&start) {
            let what = "this is text, and no token file: data.kind=text reads it as bytes, and `unisono-train prepare` \
                        makes tokens of it";
            return Err(failed(what.to_owned()));
        }
        if let Some(header) = LlmcHeader::of(&start) {
            return header.layout(bytes).map_err(failed);
        }
        let index = path.with_extension("idx");
        if path.extension().is_some_and(|extension| extension == "bin") && index.is_file() {
            return MegatronIndex::read(&index)?.layout(bytes, &index).map_err(failed);
        }
        if is_like_header(&start) {
            let magic = word(&start, 0);
            return Err(failed(format!(
                "it begins with a header of zeros, as files of llm.c do, and the magic number {magic} is none of \
                 theirs, {GPT2_MAGIC} or {LLAMA3_MAGIC}: the file is damaged, or of a kind that is not read here"
            )));
        }
        let each = width as usize;
        if !bytes.is_multiple_of(each) {
            return Err(failed(format!("{bytes} bytes are not a whole number of tokens of size {each}")));
        }
        if width == TokenWidth::Two {
            check_two_bytes(mapped).map_err(failed)?;
        }
        Ok(Self { start: 0, width, count: bytes / each })
    }
}

/// Returns true if a recognized start is none of a token file of this width. A file of one byte per
/// token may hold a web page.
fn is_foreign(start: &[u8], width: TokenWidth) -> bool {
    width != TokenWidth::One || start.is_empty() || start.starts_with(b"version https://git-lfs")
}

/// Number of printed characters that are no tokens of two bytes or more.
const MIN_TEXT: usize = 32;

/// Copies a part of the file.
fn copy(mapped: &MappedFile, offset: usize, count: usize) -> std::result::Result<Vec<u8>, String> {
    let mut bytes = vec![0; count];
    mapped.read_at(offset, &mut bytes).map_err(|error| error.to_string())?;
    Ok(bytes)
}

fn word(bytes: &[u8], index: usize) -> u32 {
    u32::from_le_bytes(bytes[4 * index..4 * index + 4].try_into().expect("four bytes"))
}

/// Size of the header of llm.c: 256 numbers of four bytes.
const LLMC_HEADER: usize = 1024;
const GPT2_MAGIC: u32 = 20_240_520;
const LLAMA3_MAGIC: u32 = 20_240_801;

/// Header of the token files of llm.c.
struct LlmcHeader {
    /// Format that the magic number gives.
    kind: &'static str,
    width: TokenWidth,
    /// Version of the format, and the one that is read.
    versions: [u32; 2],
    count: u32,
}

impl LlmcHeader {
    fn of(start: &[u8]) -> Option<Self> {
        if start.len() < 12 {
            return None;
        }
        let (kind, width, version) = match word(start, 0) {
            GPT2_MAGIC => ("GPT-2", TokenWidth::Two, 1),
            LLAMA3_MAGIC => ("Llama 3", TokenWidth::Four, 7),
            _ => return None,
        };
        Some(Self { kind, width, versions: [word(start, 1), version], count: word(start, 2) })
    }

    fn layout(&self, bytes: usize) -> std::result::Result<TokenLayout, String> {
        let Self { kind, width, versions: [version, known], count } = *self;
        if version != known {
            return Err(format!(
                "llm.c's tokens of {kind} in version {version}: version {known} is read here"
            ));
        }
        let count = count as usize;
        let wanted = LLMC_HEADER + count * width as usize;
        if bytes != wanted {
            return Err(format!(
                "the header of llm.c promises {count} tokens of {kind}, which are {wanted} bytes, and the file has \
                 {bytes}: it is damaged, or a copy that was cut off"
            ));
        }
        Ok(TokenLayout { start: LLMC_HEADER, width, count })
    }
}

/// Returns true if the first bytes are mostly zeros after three numbers, as a header of llm.c is.
fn is_like_header(start: &[u8]) -> bool {
    let Some(reserved) = start.get(12..LLMC_HEADER) else { return false };
    reserved.iter().filter(|&&byte| byte == 0).count() >= HEADER_ZEROS
}

/// Number of zero bytes that tell a damaged header from tokens. Small tokens of four bytes have up
/// to three quarters of zeros.
const HEADER_ZEROS: usize = 940;

/// Header of an index of Megatron, and the sequences at both ends that it describes.
struct MegatronIndex {
    dtype: u8,
    sequences: u64,
    /// Sizes of the first sequences in tokens, and their offsets in bytes.
    first: Vec<(u32, u64)>,
    last: (u32, u64),
}

const MEGATRON_MAGIC: &[u8; 9] = b"MMIDIDX\0\0";
const MEGATRON_HEADER: u64 = 34;
/// Number of sequences that are compared with the index.
const COMPARED: u64 = 4096;

impl MegatronIndex {
    fn read(path: &Path) -> Result<Self> {
        let failed = |error: std::io::Error| Error::file(path, error);
        let file = File::open(path).map_err(failed)?;
        let length = file.metadata().map_err(failed)?.len();
        let mut header = [0; MEGATRON_HEADER as usize];
        let read = file.read_exact_at(&mut header, 0);
        if read.is_err() || header[..9] != MEGATRON_MAGIC[..] || header[9..17] != 1u64.to_le_bytes() {
            let what = "it lies beside a .bin file of tokens, and is no index of Megatron in version 1 (MMIDIDX): get \
                        it again, or move it away if it has nothing to do with the tokens";
            return Err(Error::file(path, what));
        }
        let number =
            |place: usize| u64::from_le_bytes(header[place..place + 8].try_into().expect("eight bytes"));
        let (dtype, sequences, documents) = (header[17], number(18), number(26));
        // A damaged header can hold any numbers, whose products may not fit.
        let described =
            sequences.checked_mul(12).zip(documents.checked_mul(8)).and_then(|(sequences, documents)| {
                sequences.checked_add(documents)?.checked_add(MEGATRON_HEADER)
            });
        let plain = described.unwrap_or(u64::MAX);
        // An index of several modes has one more byte per sequence.
        if sequences == 0 || ![plain, plain.saturating_add(sequences)].contains(&length) {
            let what = format!(
                "the index of Megatron describes {sequences} sequences in {documents} documents, which are {plain} \
                 bytes, and has {length}: it is damaged, or a copy that was cut off"
            );
            return Err(Error::file(path, what));
        }
        let entry = |sequence: u64| {
            let (mut size, mut offset) = ([0; 4], [0; 8]);
            file.read_exact_at(&mut size, MEGATRON_HEADER + 4 * sequence).map_err(failed)?;
            file.read_exact_at(&mut offset, MEGATRON_HEADER + 4 * sequences + 8 * sequence)
                .map_err(failed)?;
            Ok((u32::from_le_bytes(size), u64::from_le_bytes(offset)))
        };
        let first = (0..sequences.min(COMPARED)).map(entry).collect::<Result<Vec<_>>>()?;
        Ok(Self { dtype, sequences, first, last: entry(sequences - 1)? })
    }

    /// Returns the type of the tokens, and their width if it is read here.
    fn dtype(&self) -> (&'static str, Option<TokenWidth>) {
        match self.dtype {
            1 => ("uint8", Some(TokenWidth::One)),
            2 => ("int8", None),
            3 => ("int16", None),
            4 => ("int32", Some(TokenWidth::Four)),
            5 => ("int64", None),
            6 | 7 => ("floating point", None),
            8 => ("uint16", Some(TokenWidth::Two)),
            _ => ("an unknown type", None),
        }
    }

    /// Returns the layout of a file of `bytes` bytes, of which the sequences must follow each
    /// other.
    fn layout(&self, bytes: usize, path: &Path) -> std::result::Result<TokenLayout, String> {
        let source = format!("by the index of Megatron, `{}`,", path.display());
        let (name, width) = self.dtype();
        let Some(width) = width else {
            let what = format!("{source} its tokens are of {name} (code {})", self.dtype);
            return Err(format!("{what}: uint8, uint16 and int32 are read here; write them anew"));
        };
        let end = |(size, offset): (u32, u64)| offset.checked_add(u64::from(size) * width as u64);
        let ends: Vec<_> = self.first.iter().map(|entry| end(*entry)).collect();
        let starts = self.first.iter().skip(1).map(|(_, offset)| Some(*offset));
        let is_contiguous =
            self.first[0].1 == 0 && ends.iter().copied().zip(starts).all(|(end, next)| end == next);
        if !is_contiguous || end(self.last) != Some(bytes as u64) {
            return Err(format!(
                "{source} it has {} sequences of {name} that fill another number of bytes than its {bytes}, or do not \
                 follow each other: one of the two files is damaged or of another data set",
                self.sequences
            ));
        }
        Ok(TokenLayout { start: 0, width, count: bytes / width as usize })
    }
}

/// Number of two-byte words that are examined at each of three places.
const EXAMINED: usize = 1024;
/// Largest high half of a token in a vocabulary of 2^20.
const MAX_HIGH_HALF: u16 = 15;

/// Checks that a file of two bytes per token does not hold wider numbers. Every second word of
/// those is the high half of a token: zero, or at most [`MAX_HIGH_HALF`].
fn check_two_bytes(mapped: &MappedFile) -> std::result::Result<(), String> {
    let words = mapped.bytes() / 2;
    let examined = EXAMINED.min(words);
    let (mut high, mut is_wide) = (Vec::new(), examined >= 2 * MIN_LOW_HALVES);
    for place in [0, (words - examined) / 2, words - examined] {
        // An even start keeps low and high halves apart at all three places.
        let bytes = copy(mapped, 2 * (place & !1), 2 * examined)?;
        let words: Vec<_> =
            bytes.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect();
        let half = |first: usize| words.iter().copied().skip(first).step_by(2);
        let wide = (0..2).find(|&low| {
            let low_halves: HashSet<_> = half(low).collect();
            low_halves.len() > usize::from(MAX_HIGH_HALF) && half(1 - low).all(|high| high <= MAX_HIGH_HALF)
        });
        is_wide &= wide.is_some();
        high.extend(wide.map(|low| half(low).skip(1).step_by(2).chain(half(1 - low)).all(|half| half == 0)));
    }
    let size = if high.iter().all(|is_zero| *is_zero) { "eight" } else { "four" };
    match is_wide {
        true => Err(format!(
            "its numbers look like tokens of {size} bytes each, as of NumPy's int32 and int64, and its name says two: \
             name it .u32 if it has four, or write it with two, array.astype(\"uint16\").tofile(PATH)"
        )),
        false => Ok(()),
    }
}

/// Number of tokens that are enough to tell wide numbers.
const MIN_LOW_HALVES: usize = 24;
