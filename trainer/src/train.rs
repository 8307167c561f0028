//! Training runs: setup, batch size, learning rate schedule, steps and reports.

mod added_values;
mod checkpoint_writer;
mod checkpointing;
mod config_lints;
mod data_loader;
mod dry_run;
mod generate;
mod header;
mod interrupt;
mod launch;
mod memory_check;
mod memory_report;
mod preflight;
mod pretrained;
mod processors;
mod read_ahead;
mod refusals;
mod replica_check;
mod report;
mod restored;
mod run;
mod setup;
mod shared_cores;
mod stage_times;
mod step;
mod trace;
mod train_loop;
mod validate;

pub use crate::train::generate::generate;
pub(crate) use crate::train::memory_report::MemoryReport;
pub use crate::train::train_loop::{Interruption, NOTHING_SAVED, TrainResult};
pub use dry_run::DryRun;
pub use interrupt::{INTERRUPTED, Interrupt};
pub(crate) use launch::local_worlds;
pub use launch::{train_from_env, train_on_threads, train_on_threads_until};
pub use pretrained::{export, export_with_progress};
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use report::fuzz as fuzz_records;
pub use report::{StepRecord, validation_text};
pub use run::Run;

#[cfg(test)]
mod tests;
