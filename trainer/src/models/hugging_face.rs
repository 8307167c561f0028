//! Weights and dimensions in Hugging Face's files, in the layouts of GPT-2, Llama and the families
//! that differ from Llama by a few switches (`family`).
//!
//! A model is a folder with `config.json`, and weights in `model.safetensors`, or in several files
//! that `model.safetensors.index.json` lists. Linear weights are outputs × inputs in Llama's files,
//! and inputs × outputs within the blocks of GPT-2's. A parameter of ours may consist of several
//! tensors of a file, one after the other: queries, keys and values of a Llama.

mod config;
mod family;
mod files;
#[cfg(any(test, feature = "fuzzing"))]
mod fuzzing;
mod generation;
mod layout;
mod read;
#[cfg(test)]
mod tests;
mod write;

pub(crate) use config::{
    Provenance, config_text, generation_text, notes, tokenizer_config_text, with_family,
};
pub use config::{read_config, read_folder, write_config};
pub use family::Family;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use fuzzing::{fuzz, weights as fuzz_weights};
pub(crate) use generation::{GenerationSettings, RANDOM, generation_settings};
pub use layout::Layout;
pub use read::load;
pub use write::{FileOptions, save};
pub(crate) use write::{check_folder, save_with_progress};
