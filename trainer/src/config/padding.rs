//! Padding of sequences that ranks do not divide evenly.

use crate::config::Config;
use unisono_parallel::context_parallel::Placement;

impl Config {
    /// Returns the number of positions that follow the tokens of each sequence, so that all ranks
    /// have equal parts of it.
    ///
    /// Parts are equal if the ranks of `mesh.sequence_data` divide the positions. Each part then
    /// has whole micro-sequences, two equal chunks with zig-zag placement, and rows that sequence
    /// parallel ranks divide.
    pub fn sequence_padding(&self) -> usize {
        let context = self.model.context;
        let padded = self.sequence_unit().and_then(|unit| context.checked_next_multiple_of(unit));
        padded.map_or(0, |padded| padded - context)
    }

    /// Returns the number of positions of which sequences have a multiple. `None` if there is none,
    /// because a degree is 0 or beyond all memory.
    pub(crate) fn sequence_unit(&self) -> Option<usize> {
        let halves: usize = if self.context.placement == Placement::ZigZag { 2 } else { 1 };
        let tensor = if self.strategy.sequence_parallel { self.mesh.tensor } else { 1 };
        // Sequence parallel ranks divide the rows of all samples of a micro-batch together.
        let rows = tensor.checked_div(greatest_divisor(tensor, self.data.micro_batch))?;
        let of_part = halves.checked_mul(rows)?.checked_div(greatest_divisor(halves, rows))?;
        let unit = self.mesh.sequence_data.checked_mul(self.data.micro_sequences)?.checked_mul(of_part)?;
        (1..=MAX_UNIT).contains(&unit).then_some(unit)
    }
}

/// Limit beyond any real sequence.
const MAX_UNIT: usize = 1 << 40;

/// Returns the greatest common divisor (Euclid).
fn greatest_divisor(left: usize, right: usize) -> usize {
    if right == 0 { left } else { greatest_divisor(right, left % right) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn padding(changes: &str) -> usize {
        let words = changes.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        Config::load(None, &words).expect("a configuration").sequence_padding()
    }

    #[test]
    fn sequences_are_padded_to_equal_parts() {
        for (changes, expected) in [
            ("model.context=33", 0),
            ("model.context=33 mesh.sequence_data=4", 3),
            ("model.context=36 mesh.sequence_data=4", 0),
            ("model.context=36 mesh.sequence_data=4 context.placement=striped", 0),
            ("model.context=36 mesh.sequence_data=4 context.placement=zig-zag", 4),
            ("model.context=34 mesh.sequence_data=4 data.micro_sequences=3", 2),
            ("model.context=33 data.micro_batch=1 mesh.tensor=4", 0),
            ("model.context=33 data.micro_batch=1 mesh.tensor=4 strategy.sequence_parallel=true", 3),
            ("model.context=33 data.micro_batch=2 mesh.tensor=4 strategy.sequence_parallel=true", 1),
            ("model.context=33 data.micro_batch=4 mesh.tensor=4 strategy.sequence_parallel=true", 0),
        ] {
            assert_eq!(padding(changes), expected, "{changes}");
        }
        let common =
            "mesh.tensor=4 strategy.sequence_parallel=true context.placement=zig-zag data.micro_batch=2";
        assert_eq!(padding(&format!("{common} model.context=10 mesh.sequence_data=3")), 2);
    }

    #[test]
    fn degrees_that_cannot_be_pad_nothing() {
        let mut config = Config::default();
        for degree in [0, usize::MAX] {
            config.mesh.sequence_data = degree;
            assert_eq!(config.sequence_padding(), 0, "{degree}");
        }
        (config.data.micro_batch, config.mesh.tensor, config.strategy.sequence_parallel) = (0, 0, true);
        assert_eq!(config.sequence_padding(), 0);
    }
}
