//! Training runs: what they are made of, how large their batches are and how fast they learn, and what they tell.

mod advice;
mod batch;
mod course;
mod dry_run;
mod feed;
mod formula;
mod judge;
mod launch;
mod ledger;
mod network;
mod persist;
mod replicas;
mod report;
mod run;
mod schedule;
mod setup;
mod start;
mod trace;
mod work;
mod write;

pub(crate) use advice::{DATA_RANKS_MAX, memory_of_host};
pub use batch::Batch;
pub(crate) use batch::factors;
pub use course::Outcome;
pub use dry_run::DryRun;
pub(crate) use dry_run::sections;
pub use feed::{Extents, Feed, Owned, Samples};
pub use formula::Traffic;
pub(crate) use formula::{Activations, divisors, exchanged, to_others};
pub use launch::{in_environment, on_threads};
pub use ledger::Ledger;
pub use network::Network;
pub use report::Record;
pub use run::{Run, Taken};
pub use schedule::{Scale, Schedule, Shape};
pub(crate) use setup::mesh;
pub(crate) use work::{flops_per_token, peak_flops};
pub use write::generate;

#[cfg(test)]
mod tests;
