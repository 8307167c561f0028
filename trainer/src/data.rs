//! What there is to learn from: which samples when ([`Sampler`]), and samples themselves ([`Windows`], [`Table`]).

mod dataset;
mod permutation;
mod sampler;
mod table;
pub mod text;
mod tokens;
mod windows;

pub use dataset::Dataset;
pub use permutation::Permutation;
pub use sampler::{Position, Sampler, Tail};
pub use table::{Scaling, Table};
pub use tokens::{TokenFile, Tokens, Width};
pub use windows::{Chunk, TokenBatch, Windows};

#[cfg(test)]
mod tests;
