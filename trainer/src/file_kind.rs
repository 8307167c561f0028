//! Recognizes files that people give in place of the one that a reader expects, so that errors say
//! what a file is and what to do.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use unisono_nn::error::Error;

/// Number of bytes that show what a file is.
pub(crate) const START: usize = 4096;

/// First bytes of kinds of files, and what they are with a remedy.
///
/// They are long enough that tokens do not begin like this by chance.
const KINDS: [(&[u8], &str); 14] = [
    (
        b"version https://git-lfs",
        "a pointer of git-LFS, and not the file itself: `git lfs pull` in its repository gets the file",
    ),
    (b"\x93NUMPY", "an array of NumPy with a header: write the numbers alone, with array.tofile(PATH)"),
    (b"PK\x03\x04", "a zip archive, as torch.save and numpy.savez write: it is not read here"),
    (b"\x80\x02\x8a\nl\xfc", "a pickle of Python: it is not read here, because a pickle can run programs"),
    (b"\x1f\x8b\x08\x00", "compressed by gzip: unpack it with `gunzip`"),
    (b"\x1f\x8b\x08\x08", "compressed by gzip: unpack it with `gunzip`"),
    (b"\x28\xb5\x2f\xfd", "compressed by Zstandard: unpack it with `unzstd`"),
    (b"\xfd7zXZ\x00", "compressed by xz: unpack it with `unxz`"),
    (b"BZh91AY&SY", "compressed by bzip2: unpack it with `bunzip2`"),
    (b"PAR1", "a Parquet table: write its text to files, or its tokens as numbers"),
    (b"ARROW1", "an Arrow table: write its text to files, or its tokens as numbers"),
    (b"\x89HDF", "an HDF5 file: write its tokens as numbers"),
    (b"MMIDIDX", "an index of Megatron: name the .bin file beside it"),
    (b"GGUF", "a model in GGUF: it is not read here; use the .safetensors files of the model"),
];

/// Returns what the first bytes of a file show it to be, with a remedy; `None` if they do not show
/// it. A file that a reader expects must not be given to this.
pub(crate) fn recognize(start: &[u8]) -> Option<&'static str> {
    let kind = KINDS.iter().find(|(magic, _)| start.starts_with(magic)).map(|(_, kind)| *kind);
    kind.or_else(|| is_web_page(start).then_some(WEB_PAGE)).or_else(|| start.is_empty().then_some(EMPTY))
}

const EMPTY: &str = "empty: get it again, or remove it";
const WEB_PAGE: &str =
    "a web page (HTML), perhaps the answer to a download that was refused: get the file itself";

fn is_web_page(start: &[u8]) -> bool {
    let text = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(start).trim_ascii_start();
    let head = text[..text.len().min(16)].to_ascii_lowercase();
    head.starts_with(b"<!doctype html") || head.starts_with(b"<html") || head.starts_with(b"<head")
}

/// Returns true if all bytes are those of printed text, in ASCII.
pub(crate) fn is_ascii_text(start: &[u8]) -> bool {
    start.iter().all(|byte| matches!(byte, b' '..=b'~' | b'\n' | b'\r' | b'\t'))
}

/// Builds an error about a file that cannot be read as `wanted`, such as "a tokenizer". It says
/// what the file is, as far as that can be seen, and otherwise what the reader says.
pub(crate) fn unreadable(path: &Path, wanted: &str, error: impl ToString) -> Error {
    let Ok(found) = fs::metadata(path) else { return Error::file(path, error) };
    if found.is_dir() {
        return Error::file(path, format!("a folder, where {wanted} belongs: name a file"));
    }
    recognized(path, wanted, format!("this is no {}: {}", without_article(wanted), error.to_string()))
}

/// Builds an error about a file in place of `wanted`. It says what the file is if that can be seen,
/// and `what` otherwise.
pub(crate) fn recognized(path: &Path, wanted: &str, what: impl ToString) -> Error {
    let mut start = Vec::new();
    let read = File::open(path).and_then(|file| file.take(START as u64).read_to_end(&mut start));
    match read.ok().and_then(|_| recognize(&start)) {
        Some(kind) => Error::file(path, format!("this is no {}, but {kind}", without_article(wanted))),
        None => Error::file(path, what),
    }
}

fn without_article(wanted: &str) -> &str {
    wanted.strip_prefix("a ").or(wanted.strip_prefix("an ")).unwrap_or(wanted)
}

/// Reads the file at `path`, which must be text in UTF-8.
///
/// # Errors
/// Names the file. If it is no text, the error says what it is, or where its first wrong byte is.
pub(crate) fn read_text(path: &Path, wanted: &str) -> unisono_nn::Result<String> {
    let bytes = fs::read(path).map_err(|error| match path.is_dir() {
        true => unreadable(path, wanted, error),
        false => Error::file(path, error),
    })?;
    String::from_utf8(bytes).map_err(|error| unreadable(path, wanted, not_utf8(error.as_bytes())))
}

/// Returns where bytes are no text in UTF-8, with a remedy.
pub(crate) fn not_utf8(bytes: &[u8]) -> String {
    let offset = std::str::from_utf8(bytes).err().map_or(bytes.len(), |error| error.valid_up_to());
    let byte = bytes.get(offset).copied().unwrap_or_default();
    format!(
        "byte {offset} is {byte:#04x}, which is not UTF-8: convert the file, as with `iconv -f latin1 -t utf8`, or leave \
         it out"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const POINTER: &[u8] = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 548105171\n";

    #[test]
    fn other_files_are_named_with_a_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokenizer.json");
        for (contents, words) in [
            (POINTER, "a pointer of git-LFS"),
            (b"\n <!DOCTYPE html><html>", "a web page (HTML)"),
            (b"<HTML>", "a web page (HTML)"),
            (b"", "empty"),
            (b"PK\x03\x04...", "a zip archive"),
            (b"{", "no tokenizer: end of input"),
        ] {
            fs::write(&path, contents).unwrap();
            let text = unreadable(&path, "a tokenizer", "end of input").to_string();
            assert!(text.contains("tokenizer.json") && text.contains(words), "{text}");
        }
        let text = unreadable(folder.path(), "a tokenizer", "end of input").to_string();
        assert!(text.contains("a folder, where a tokenizer belongs"), "{text}");
    }

    #[test]
    fn text_that_is_not_utf8_is_located() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.toml");
        fs::write(&path, b"seed = 1 # f\xfcr").unwrap();
        let text = read_text(&path, "a configuration").unwrap_err().to_string();
        assert!(text.contains("byte 12 is 0xfc, which is not UTF-8"), "{text}");
        fs::write(&path, "für").unwrap();
        assert_eq!(read_text(&path, "a configuration").unwrap(), "für");
        assert!(read_text(&folder.path().join("none"), "a configuration").is_err());
    }
}
