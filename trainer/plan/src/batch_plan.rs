//! Batch arithmetic: division of a global batch into micro-batches over steps and ranks.

use std::fmt;
use unisono_nn::counted;
use unisono_nn::error::{Error, Result};

/// Division of a global batch: `micro_batch` samples at once, `accumulation` times, on `ranks` data
/// ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchPlan {
    /// Samples that a rank computes at once.
    pub micro_batch: usize,
    /// Micro-batches per rank and optimizer step.
    pub accumulation: usize,
    /// Number of ranks with different samples.
    pub ranks: usize,
    /// Micro-batches that are computed together, breadth first.
    pub breadth_first: usize,
    /// Parts of each sequence that pass one after the other.
    pub micro_sequences: usize,
}

impl BatchPlan {
    /// Divides `global` samples. Prefers more ranks to more accumulation.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the nearest numbers that divide evenly.
    pub fn divide(global: usize, micro: usize, ranks: usize) -> Result<Self> {
        let named = [("global batch", global), ("micro-batch", micro), ("number of data ranks", ranks)];
        if let Some((name, _)) = named.into_iter().find(|&(_, size)| size == 0) {
            return Err(Error::invalid(format!("a {name} of 0")));
        }
        // Settings can have any size, and a product that overflows is too large in any case.
        let at_once = micro.saturating_mul(ranks);
        if at_once > global {
            return Err(Error::invalid(too_many_ranks(global, micro, ranks)));
        }
        if !global.is_multiple_of(at_once) {
            return Err(Error::invalid(not_divisible(global, micro, ranks)));
        }
        Ok(Self {
            micro_batch: micro,
            accumulation: global / at_once,
            ranks,
            breadth_first: 1,
            micro_sequences: 1,
        })
    }

    /// Sets the number of micro-batches that are computed breadth first.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the divisors of the accumulation.
    pub fn with_breadth_first(self, breadth: usize) -> Result<Self> {
        if breadth == 0 || !self.accumulation.is_multiple_of(breadth) {
            let what =
                format!("{breadth} micro-batches breadth first do not divide the {}", self.accumulation);
            let legal = divisors(self.accumulation);
            return Err(Error::invalid(format!("{what} that a rank accumulates; with this batch: {legal}")));
        }
        Ok(Self { breadth_first: breadth, ..self })
    }

    /// Returns the number of passes per step, each of `breadth_first` micro-batches.
    pub fn pass_count(&self) -> usize {
        self.accumulation / self.breadth_first
    }

    /// Returns the number of micro-sequences per rank and optimizer step: micro-batches, if their
    /// sequences are whole.
    pub fn micro_count(&self) -> usize {
        self.accumulation * self.micro_sequences
    }

    /// Returns the number of samples in `tokens` tokens, with sequences of length `sequence`.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the nearest numbers of tokens that are whole sequences.
    pub fn samples(tokens: usize, sequence: usize) -> Result<usize> {
        match tokens.checked_rem(sequence) {
            Some(0) if tokens > 0 => Ok(tokens / sequence),
            _ => {
                let what = format!("a batch of {tokens} tokens is not made of sequences of {sequence}");
                Err(Error::invalid(format!("{what}; nearest: {}", nearest(tokens, sequence.max(1)))))
            }
        }
    }

    /// Returns the number of samples per optimizer step.
    pub fn global(&self) -> usize {
        self.micro_batch * self.accumulation * self.ranks
    }
}

impl fmt::Display for BatchPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { micro_batch: micro, accumulation, ranks, breadth_first: breadth, micro_sequences } = self;
        let global = self.global();
        let ranks = counted(*ranks, "data rank");
        write!(f, "{global} = micro-batch {micro} x accumulation {accumulation} x {ranks}")?;
        if *breadth > 1 {
            write!(f, ", {breadth} micro-batches at a time breadth first")?;
        }
        if *micro_sequences > 1 { write!(f, ", each in {micro_sequences} micro-sequences") } else { Ok(()) }
    }
}

/// Builds the message for more ranks than samples, with the options.
fn too_many_ranks(global: usize, micro: usize, ranks: usize) -> String {
    let at_once = micro.saturating_mul(ranks);
    let problem = format!(
        "a global batch of {global} is smaller than micro-batch {micro} x {ranks} data ranks = {at_once}"
    );
    let smaller = other_divisors(global, ranks).into_iter().rfind(|&legal| legal < micro);
    let smaller = smaller
        .map(|micro| format!("a micro-batch of {micro}, which keeps all ranks busy with less work each"));
    let fewer = other_divisors(global, micro).into_iter().rfind(|&legal| legal < ranks);
    let fewer = fewer.map(|ranks| format!("{ranks} data ranks, the others for tensor or pipeline parallel"));
    let larger = format!("a global batch of {at_once}, if training tolerates it (schedule.lr_scale)");
    let ways: Vec<String> = smaller.into_iter().chain(fewer).chain([larger]).collect();
    let count = ["One option", "Two options", "Three options"][ways.len() - 1];
    let ways: Vec<_> = (1..).zip(ways).map(|(number, way)| format!("({number}) {way}")).collect();
    format!("{problem}. {count}: {}", ways.join("; "))
}

/// Returns the divisors of `global` / `other` in ascending order.
fn other_divisors(global: usize, other: usize) -> Vec<usize> {
    if global.is_multiple_of(other) { factors(global / other) } else { Vec::new() }
}

fn not_divisible(global: usize, micro: usize, ranks: usize) -> String {
    let problem =
        format!("a global batch of {global} is no multiple of micro-batch {micro} x {ranks} data ranks");
    let legal = other_divisors(global, ranks);
    let smaller = legal.iter().rfind(|&&legal| legal < micro);
    let larger = legal.iter().find(|&&legal| legal > micro);
    let micros: Vec<String> = smaller.into_iter().chain(larger).map(|micro| micro.to_string()).collect();
    let micros = match micros.len() {
        0 => String::new(),
        _ => format!("; with this global batch: micro-batch {}", micros.join(" or ")),
    };
    format!("{problem}; nearest global batch: {}{micros}", nearest(global, micro * ranks))
}

/// Returns the divisors of `number` as text.
fn divisors(number: usize) -> String {
    factors(number).iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}

/// Returns the divisors of `number` in ascending order, found up to the square root.
pub(crate) fn factors(number: usize) -> Vec<usize> {
    let small: Vec<usize> = (1..=number.isqrt()).filter(|&factor| number.is_multiple_of(factor)).collect();
    // The root of a square number is its own partner, and counts once.
    let large = small.iter().rev().map(|factor| number / factor).filter(|large| !small.contains(large));
    small.iter().copied().chain(large).collect()
}

/// Returns the nearest multiples of `unit` as text.
fn nearest(number: usize, unit: usize) -> String {
    match number / unit * unit {
        0 => format!("{unit}"),
        lower => format!("{lower} or {}", lower + unit),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rejection(global: usize, micro: usize, ranks: usize) -> String {
        BatchPlan::divide(global, micro, ranks).unwrap_err().to_string()
    }

    #[test]
    fn batch_plan_matches_worked_examples() {
        let samples = BatchPlan::samples(4_194_304, 4096).unwrap();
        assert_eq!(samples, 1024);
        let expected =
            BatchPlan { micro_batch: 2, accumulation: 4, ranks: 128, breadth_first: 1, micro_sequences: 1 };
        assert_eq!(BatchPlan::divide(samples, 2, 128).unwrap(), expected);
        assert_eq!(BatchPlan::divide(samples, 2, 512).unwrap().accumulation, 1);
        assert_eq!(
            BatchPlan::divide(24, 2, 3).unwrap().to_string(),
            "24 = micro-batch 2 x accumulation 4 x 3 data ranks"
        );
    }

    #[test]
    fn only_divisible_batches_are_accepted() {
        for global in 1..40 {
            for (micro, ranks) in (1..9).flat_map(|micro| (1..9).map(move |ranks| (micro, ranks))) {
                match BatchPlan::divide(global, micro, ranks) {
                    Ok(batch) => {
                        assert_eq!((batch.global(), batch.micro_batch, batch.ranks), (global, micro, ranks))
                    }
                    Err(_) => assert!(!global.is_multiple_of(micro * ranks)),
                }
            }
        }
    }

    #[test]
    fn indivisible_batches_suggest_nearest() {
        assert_eq!(
            rejection(100, 8, 4),
            "a global batch of 100 is no multiple of micro-batch 8 x 4 data ranks; nearest global batch: 96 or 128; \
             with this global batch: micro-batch 5 or 25"
        );
        assert!(rejection(7, 1, 2).ends_with("nearest global batch: 6 or 8"));
        assert_eq!(rejection(7, 0, 2), "a micro-batch of 0");
        let error = BatchPlan::samples(1000, 64).unwrap_err().to_string();
        assert_eq!(error, "a batch of 1000 tokens is not made of sequences of 64; nearest: 960 or 1024");
        assert!(BatchPlan::samples(10, 0).is_err() && BatchPlan::samples(0, 8).is_err());
    }

    #[test]
    fn breadth_first_groups_are_equal() {
        let batch = BatchPlan::divide(24, 2, 2).unwrap();
        let grouped = batch.with_breadth_first(3).unwrap();
        assert_eq!((grouped.pass_count(), grouped.global()), (2, 24));
        assert!(grouped.to_string().ends_with("2 data ranks, 3 micro-batches at a time breadth first"));
        let error = batch.with_breadth_first(4).unwrap_err().to_string();
        assert_eq!(
            error,
            "4 micro-batches breadth first do not divide the 6 that a rank accumulates; with this batch: 1, 2, 3, 6"
        );
    }

    #[test]
    fn too_many_ranks_suggest_three_options() {
        assert_eq!(
            rejection(64, 8, 16),
            "a global batch of 64 is smaller than micro-batch 8 x 16 data ranks = 128. Three options: \
             (1) a micro-batch of 4, which keeps all ranks busy with less work each; \
             (2) 8 data ranks, the others for tensor or pipeline parallel; \
             (3) a global batch of 128, if training tolerates it (schedule.lr_scale)"
        );
        for hopeless in [rejection(3, 4, 2), rejection(10, 4, 3)] {
            assert!(hopeless.contains("One option: (1) a global batch of"), "{hopeless}");
        }
        assert!(rejection(8, 2, 64).contains("Two options: (1) 4 data ranks"));
        assert!(rejection(10, usize::MAX, 2).contains("micro-batch of 5"));
    }
}
