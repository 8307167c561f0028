//! Checkpoints: the state of all ranks, in files that any number of ranks can resume from.
//!
//! A checkpoint is a folder `step-<number>`. It holds a
//! [safetensors](https://github.com/huggingface/safetensors) file for each rank with state of its
//! own, and a manifest with everything else. Elements are identified by their position in the whole
//! tensor, without padding, so that a run with other shards can load them.
//!
//! Files are written to a temporary folder, flushed to disk, and renamed at the end. A kill at any
//! time leaves the last complete checkpoint intact.

#[cfg(test)]
pub(crate) mod corruption_tests;
mod file_rules;
pub(crate) mod folder;
mod manifest;
mod model_files;
mod read;
mod shard;
mod tensors;
mod write;

pub(crate) use file_rules::{check_source, left_out, refused_names};
pub use folder::{latest, list};
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use manifest::fuzz as fuzz_manifest;
pub(crate) use manifest::{Manifest, SavedFile, TrainProgress};
pub(crate) use model_files::{ModelFiles, RunFiles};
pub(crate) use read::with_last_good;
pub use read::{load, verify_files};
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use shard::fuzz as fuzz_shard;
pub(crate) use tensors::TensorFile;
pub(crate) use write::{RunSetup, Snapshot};
pub use write::{SavedBy, save};

#[cfg(test)]
mod tests;
