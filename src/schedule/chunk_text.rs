//! The text form of chunks, for example `in0`, in drawings and files of schedules.

use super::{Chunk, Space};
use std::fmt;
use std::str::FromStr;

const NAMES: [(Space, &str); 4] =
    [(Space::Input, "in"), (Space::Output, "out"), (Space::Scratch, "tmp"), (Space::Window, "win")];

impl fmt::Display for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = NAMES.into_iter().find(|(space, _)| *space == self.space).map_or("", |(_, name)| name);
        f.pad(&format!("{name}{}", self.index))
    }
}

impl FromStr for Chunk {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = NAMES.into_iter().find_map(|(space, name)| Some((space, text.strip_prefix(name)?)));
        let is_number = |digits: &str| digits.bytes().all(|digit| digit.is_ascii_digit());
        let chunk = named
            .filter(|(_, digits)| is_number(digits))
            .and_then(|(space, digits)| Some(Chunk { space, index: digits.parse().ok()? }));
        chunk.ok_or_else(|| {
            let shown: String = text.chars().take(TEXT_SHOWN_MAX).collect();
            format!(
                "`{}` is no chunk; a chunk is `in`, `out`, `tmp` or `win` and a number",
                shown.escape_debug()
            )
        })
    }
}

impl TryFrom<String> for Chunk {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Chunk> for String {
    fn from(chunk: Chunk) -> Self {
        chunk.to_string()
    }
}

/// Largest number of characters of a wrong text that an error shows.
const TEXT_SHOWN_MAX: usize = 20;

#[cfg(test)]
mod tests {
    use super::super::{input, output, scratch, window};
    use super::*;

    #[test]
    fn chunks_are_read_as_they_are_written() {
        for chunk in [input(0), output(7), scratch(12), window(u32::MAX as usize)] {
            assert_eq!(chunk.to_string().parse(), Ok(chunk));
        }
        for text in ["", "in", "in-1", "in+1", "in 1", "4", "out4294967296", "home0", "in0x1"] {
            let error = text.parse::<Chunk>().unwrap_err();
            assert!(error.starts_with(&format!("`{text}` is no chunk")), "{error}");
        }
    }
}
