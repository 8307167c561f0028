//! Positions of the tokens that a rank has of each sequence.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use unisono_nn::error::{Error, Result};

/// Distribution of the positions of a sequence over the ranks that share it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// Consecutive positions on each rank. Later ranks attend to more keys.
    #[default]
    Contiguous,
    /// Position p on rank p modulo N (Brandon et al., "Striped attention", 2023).
    Striped,
    /// Chunks r and 2N−1−r of 2N on rank r, as in Llama 3 (2024).
    ZigZag,
}

/// Part of each sequence that a rank has at a time, in the order of its positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceChunk {
    /// Index of the rank.
    pub index: usize,
    /// Number of ranks that share a sequence.
    pub count: usize,
    /// Distribution over the ranks.
    pub placement: Placement,
    /// Index of the micro-sequence. Ranks share each of them.
    pub part: usize,
    /// Number of micro-sequences.
    pub parts: usize,
    /// Number of positions after the tokens of a sequence, which make its parts equal.
    pub padding: usize,
}

impl SequenceChunk {
    /// The whole sequence.
    pub const WHOLE: Self = Self::new(0, 1);

    /// Returns rank `index`'s chunk of `count` contiguous ones.
    pub const fn new(index: usize, count: usize) -> Self {
        Self { index, count, placement: Placement::Contiguous, part: 0, parts: 1, padding: 0 }
    }

    /// Returns this chunk of micro-sequence `part` of `parts`.
    pub fn within(self, part: usize, parts: usize) -> Self {
        Self { part, parts, ..self }
    }

    /// Returns the positions of the `length` rows that rank `index` has of a sequence, ascending.
    pub fn positions_of(self, index: usize, length: usize) -> impl Iterator<Item = usize> {
        let chunk = Self { index, ..self };
        (0..length).map(move |row| chunk.position(row, length))
    }

    /// Returns the number of positions of a sequence of `sequence` tokens, with padding.
    ///
    /// # Errors
    /// Fails if the parts are not equal.
    pub fn length(self, sequence: usize) -> Result<usize> {
        let Self { index, count, placement, part, parts, padding } = self;
        let sequence = sequence + padding;
        let halves = if placement == Placement::ZigZag { 2 } else { 1 };
        if !sequence.is_multiple_of(count * parts * halves) || index >= count || part >= parts {
            let what = format!("a sequence of {sequence} has no chunk {index} of {count} equal ones");
            let micro_sequence =
                if parts > 1 { format!(" in micro-sequence {part} of {parts}") } else { String::new() };
            return Err(Error::invalid(what + &micro_sequence));
        }
        Ok(sequence / (count * parts))
    }

    /// Returns the position in its sequence of row `row` of `length` rows.
    pub fn position(self, row: usize, length: usize) -> usize {
        let Self { index, count, placement, part, .. } = self;
        let offset = match placement {
            Placement::Contiguous => index * length + row,
            Placement::Striped => row * count + index,
            Placement::ZigZag => match row.checked_sub(length / 2) {
                None => index * (length / 2) + row,
                Some(later) => (2 * count - 1 - index) * (length / 2) + later,
            },
        };
        part * count * length + offset
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_every_position_once_in_order() {
        for placement in [Placement::Contiguous, Placement::Striped, Placement::ZigZag] {
            for (count, parts) in [(1, 1), (2, 1), (3, 2), (4, 3)] {
                let sequence = 4 * count * parts;
                let mut covered = Vec::new();
                for (part, index) in (0..parts).flat_map(|part| (0..count).map(move |index| (part, index))) {
                    let chunk =
                        SequenceChunk { placement, ..SequenceChunk::new(index, count) }.within(part, parts);
                    let length = chunk.length(sequence).unwrap();
                    let positions: Vec<_> = (0..length).map(|row| chunk.position(row, length)).collect();
                    assert!(positions.is_sorted(), "{chunk:?}: {positions:?}");
                    covered.extend(positions);
                }
                covered.sort_unstable();
                assert!(covered.into_iter().eq(0..sequence), "{placement:?}, {count} ranks, {parts} parts");
            }
        }
        let zig_zag = SequenceChunk { placement: Placement::ZigZag, ..SequenceChunk::new(1, 2) };
        assert_eq!([0, 1, 2, 3].map(|row| zig_zag.position(row, 4)), [2, 3, 4, 5]);
        assert!(zig_zag.length(6).is_err(), "three tokens have no halves");
    }
}
