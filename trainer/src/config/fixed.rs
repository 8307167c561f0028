//! What a run cannot change when it goes on from a checkpoint.

use super::{Config, ModelKind, read};
use crate::error::Result;
use std::collections::BTreeMap;

impl Config {
    /// The keys that decide what the numbers in a checkpoint mean, with their values as TOML: of the model all but how it is
    /// computed, the kind of optimiser, and whether data is shuffled.
    ///
    /// # Errors
    /// [`Error::Illegal`](crate::error::Error::Illegal) if a number is too large for TOML.
    pub fn fixed(&self) -> Result<BTreeMap<String, String>> {
        let other = match self.model.kind {
            ModelKind::Gpt => &OF_PERCEPTRONS[..],
            ModelKind::Mlp => &OF_TRANSFORMERS[..],
        };
        let mut all = BTreeMap::new();
        for (section, values) in read::written(self)? {
            for (key, value) in values.as_table().into_iter().flatten() {
                let is_fixed = match section.as_str() {
                    "model" => !MAY_CHANGE.contains(&key.as_str()) && !other.contains(&key.as_str()),
                    _ => FIXED.contains(&(section.as_str(), key.as_str())),
                };
                if is_fixed {
                    all.insert(format!("{section}.{key}"), value.to_string());
                }
            }
        }
        Ok(all)
    }
}

/// What is fixed outside the model.
const FIXED: [(&str, &str); 2] = [("optimiser", "kind"), ("data", "shuffle")];
/// How a model is computed, and what acts in training only.
const MAY_CHANGE: [&str; 3] = ["dropout", "checkpointing", "cross_entropy_splits"];
/// What only perceptrons go by.
const OF_PERCEPTRONS: [&str; 1] = ["hidden"];
/// What only transformers go by.
const OF_TRANSFORMERS: [&str; 7] = ["layers", "width", "heads", "context", "norm", "feed_forward", "tied"];
