//! Checkpoints: what all ranks keep, in files that any number of ranks can continue from.
//!
//! A checkpoint is a folder `step-<number>`: a [safetensors](https://github.com/huggingface/safetensors) file for each rank that
//! keeps something of its own, and a manifest with everything else. Elements are named by their place in the whole
//! tensor, without padding: who loads may be cut otherwise, or not at all.
//!
//! Files are written to a folder of another name, flushed to the disk, and given their name at the end: a kill
//! at any moment leaves the last whole checkpoint.

#[cfg(test)]
mod corruption_tests;
pub(crate) mod folder;
mod manifest;
mod read;
mod shard;
mod tensors;
mod write;

pub use folder::{latest, list};
pub use manifest::{Manifest, SavedParameter, ShardFile, TrainProgress};
pub use read::load;
pub(crate) use tensors::TensorFile;
pub use write::{SavedBy, save};

#[cfg(test)]
mod tests;
