//! Models: GPT-2, Llama and the families like it, and their files.

mod gpt;
mod gpt_config;
pub mod hugging_face;
mod sampling;
#[cfg(test)]
mod tests;

pub use gpt::Gpt;
pub(crate) use gpt_config::Positions;
pub(crate) use gpt_config::narrow_window;
pub use gpt_config::{FeedForward, GptConfig, Norm};
pub(crate) use hugging_face::Family;
pub use sampling::Sampling;
