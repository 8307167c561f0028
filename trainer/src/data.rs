//! Training data: the order of samples ([`Sampler`]), and the samples ([`TokenWindows`]).

mod added_tokens;
mod dataset_id;
mod permutation;
mod prepare;
mod sampler;
pub(crate) mod special_tokens;
pub mod text;
mod text_codec;
mod token_layout;
mod tokenizer;
mod tokens;
mod windows;

pub use crate::data::dataset_id::DatasetId;
pub use permutation::Permutation;
pub use prepare::{Prepared, TokenizeOptions};
pub use sampler::{LastBatch, Position, Sampler};
pub use text_codec::{DecodeStream, TextCodec};
pub(crate) use tokenizer::TOKENIZER;
pub use tokenizer::Tokenizer;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use tokenizer::fuzz as fuzz_tokenizer;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use tokens::fuzz as fuzz_tokens;
pub use tokens::{TokenFile, TokenSource, TokenWidth};
pub use windows::TokenWindows;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod token_damage_tests;
