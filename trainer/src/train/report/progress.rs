//! Progress line on the terminal.

use crate::train::report::StepRecord;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{IsTerminal, Write, stderr};
use std::time::Duration;

/// Progress bar on a terminal; otherwise a line every `every` steps.
pub(super) enum ProgressLine {
    Bar(ProgressBar),
    Lines { every: u64, first: u64, steps: u64 },
}

impl ProgressLine {
    /// Creates the progress of a run of `steps` steps, of which `taken` are complete.
    pub(super) fn new(steps: u64, taken: u64, every: u64) -> Self {
        if !stderr().is_terminal() {
            return Self::Lines { every, first: taken + 1, steps };
        }
        // Two lines: a terminal of 80 columns would cut off the end of one.
        let style =
            ProgressStyle::with_template("{bar:10} {pos}/{len} {wide_msg}\n{prefix}").expect("a template");
        let bar = ProgressBar::new(steps).with_style(style);
        bar.set_position(taken);
        Self::Bar(bar)
    }

    pub(super) fn step(&self, record: &StepRecord, left: Duration) {
        match self {
            Self::Bar(bar) => {
                bar.set_position(record.step);
                let [first, second] = format_record(record, left);
                bar.set_prefix(second);
                bar.set_message(first);
                if let Some(line) = validation_line(record) {
                    bar.println(line);
                }
            }
            Self::Lines { every, first, steps } => {
                if record.step.is_multiple_of(*every) || [*first, *steps].contains(&record.step) {
                    print_line(&format!(
                        "step {}/{steps} {}",
                        record.step,
                        format_record(record, left).join(" ")
                    ));
                }
                if let Some(line) = validation_line(record) {
                    print_line(&line);
                }
            }
        }
    }

    pub(super) fn finish(&self) {
        if let Self::Bar(bar) = self {
            // The bar stays on the terminal with its last numbers.
            bar.abandon();
        }
    }
}

/// Prints a line. A closed output does not end the run.
pub(in crate::train) fn print_line(line: &str) {
    let _ = writeln!(stderr(), "{line}");
}

fn validation_line(record: &StepRecord) -> Option<String> {
    record.validation.map(|loss| format!("step {}: {}", record.step, validation_text(loss)))
}

/// Formats a validation loss and its perplexity.
pub fn validation_text(loss: f64) -> String {
    format!("validation loss {loss:.4}, perplexity {:.2}", loss.exp())
}

/// Formats the fractions of the step that rank 0 waited: for gradients and weights, and in tensor
/// parallel layers and for pipeline stages if there are any.
fn exposed(record: &StepRecord) -> String {
    let percent = |seconds: f64| format!("{:.0}%", 100.0 * seconds / record.seconds);
    let others = [(record.tensor_parallel_seconds, "in layers"), (record.pipeline_seconds, "for stages")];
    let others = others.into_iter().filter(|(seconds, _)| *seconds > 0.0);
    let others = others.map(|(seconds, where_to)| format!(" + {} {where_to}", percent(seconds)));
    percent(record.exposed_seconds) + &others.collect::<String>()
}

/// Formats the losses and metrics of blocks, and the largest load of an expert, each after a space.
fn added(record: &StepRecord) -> String {
    let values = record.losses.iter().chain(&record.metrics);
    let load = record.largest_load().map(|(most, path)| format!(" load {most:.2}x in {path}"));
    values.map(|(name, value)| format!(" {name} {value:.4}")).chain(load).collect()
}

/// Formats one step: how it goes on, and other numbers. The most important ones are the first,
/// because a terminal cuts off the others.
fn format_record(record: &StepRecord, left: Duration) -> [String; 2] {
    let StepRecord { loss, grad_norm: norm, lr: rate, mfu: utilization, .. } = record;
    let (exposed, added) = (exposed(record), added(record));
    let [measured, formula] =
        [record.memory, record.memory_predicted].map(|bytes| bytes as f64 / f64::from(1 << 20));
    let first = format!(
        "loss {loss:.4}{added} left {} {} tok/s MFU {:.0}% exposed {exposed}",
        duration(left),
        format_number(record.tokens_per_second),
        100.0 * utilization,
    );
    [first, format!("norm {norm:.2} lr {rate:.1e} memory {measured:.1}/{formula:.1} MiB")]
}

/// Formats a number with few digits: 950, 12.3k, 4.56M.
fn format_number(number: f64) -> String {
    match number {
        ..1e3 => format!("{number:.0}"),
        ..1e6 => format!("{:.1}k", number / 1e3),
        _ => format!("{:.2}M", number / 1e6),
    }
}

/// Formats a duration: 45s, 3m20s, 2h05m.
fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        _ => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_line_formats_one_step() {
        let record = StepRecord {
            loss: 2.5,
            grad_norm: 0.75,
            lr: 2e-3,
            seconds: 0.2,
            exposed_seconds: 0.05,
            ..StepRecord::default()
        };
        let record = StepRecord { tokens_per_second: 12_345.0, mfu: 0.414, ..record };
        let record = StepRecord { memory: 3 << 20, memory_predicted: 3 << 20, ..record };
        let [first, second] = format_record(&record, Duration::from_secs(200));
        assert_eq!(first, "loss 2.5000 left 3m20s 12.3k tok/s MFU 41% exposed 25%");
        assert_eq!(second, "norm 0.75 lr 2.0e-3 memory 3.0/3.0 MiB");
        let bar_width = "========== 100000/100000 ".len();
        assert!(bar_width + first.len() <= 80 && second.len() <= 80);
        let record = StepRecord { step: 5, validation: Some(0.5), perplexity: Some(1.65), ..record };
        assert_eq!(validation_line(&record).unwrap(), "step 5: validation loss 0.5000, perplexity 1.65");
        let record = StepRecord {
            losses: [("balance".to_owned(), 0.25)].into(),
            metrics: [("entropy".to_owned(), 1.5)].into(),
            expert_loads: [("h.0.mlp".to_owned(), vec![0.5, 1.5]), ("h.1.mlp".to_owned(), vec![1.0; 2])]
                .into(),
            ..record
        };
        let [line, _] = format_record(&record, Duration::ZERO);
        assert!(
            line.starts_with("loss 2.5000 balance 0.2500 entropy 1.5000 load 1.50x in h.0.mlp "),
            "{line}"
        );
        assert_eq!([format_number(950.0), format_number(4.56e6)], ["950", "4.56M"]);
        assert_eq!(duration(Duration::from_secs(7500)), "2h05m");
    }
}
