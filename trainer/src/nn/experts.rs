//! Mixtures of experts.

mod settings;

pub use settings::{ExpertBalance, Experts, RouterScore};
