//! Settings that must not change when a run resumes from a checkpoint.

use crate::config::{Config, ModelKind, read};
use crate::error::Result;
use std::collections::BTreeMap;

impl Config {
    /// The keys that decide what the numbers in a checkpoint mean, with their values as TOML: of
    /// the model all but how it is computed, the kind of optimizer, and whether data is shuffled.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::error::Error::Invalid) if a number is too large for TOML.
    pub fn resume_invariants(&self) -> Result<BTreeMap<String, String>> {
        let other = match self.model.kind {
            ModelKind::Gpt => &MLP_KEYS[..],
            ModelKind::Mlp => &GPT_KEYS[..],
        };
        let mut all = BTreeMap::new();
        for (section, values) in read::to_table(self)? {
            for (key, value) in values.as_table().into_iter().flatten() {
                let is_fixed = match section.as_str() {
                    "model" => {
                        !CHANGEABLE_MODEL_KEYS.contains(&key.as_str()) && !other.contains(&key.as_str())
                    }
                    _ => INVARIANT_KEYS.contains(&(section.as_str(), key.as_str())),
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
const INVARIANT_KEYS: [(&str, &str); 2] = [("optimizer", "kind"), ("data", "shuffle")];
/// How a model is computed, and what acts in training only.
const CHANGEABLE_MODEL_KEYS: [&str; 3] = ["dropout", "activation_checkpointing", "cross_entropy_splits"];
/// What only perceptrons go by.
const MLP_KEYS: [&str; 1] = ["hidden_sizes"];
/// What only transformers go by.
const GPT_KEYS: [&str; 7] =
    ["layers", "width", "heads", "context", "norm", "feed_forward", "tie_word_embeddings"];
