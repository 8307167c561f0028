//! Settings that must not change when a run resumes from a checkpoint.

use crate::config::{Config, read};
use std::collections::BTreeMap;
use unisono_nn::error::Result;

impl Config {
    /// Returns the keys that decide what the numbers in a checkpoint mean, with their values as
    /// TOML. These are most keys of the model, and the kind of optimizer.
    ///
    /// # Errors
    /// [`Error::Invalid`](unisono_nn::error::Error::Invalid) if a number is too large for TOML.
    pub fn resume_invariants(&self) -> Result<BTreeMap<String, String>> {
        let mut invariants = BTreeMap::new();
        for (section, values) in read::to_table(self)? {
            for (key, value) in values.as_table().into_iter().flatten() {
                let is_fixed = match section.as_str() {
                    "model" => !CHANGEABLE_MODEL_KEYS.contains(&key.as_str()),
                    "experts" => !CHANGEABLE_EXPERT_KEYS.contains(&key.as_str()),
                    _ => INVARIANT_KEYS.contains(&(section.as_str(), key.as_str())),
                };
                if is_fixed {
                    invariants.insert(format!("{section}.{key}"), value.to_string());
                }
            }
        }
        Ok(invariants)
    }
}

/// Invariant keys outside of the model.
const INVARIANT_KEYS: [(&str, &str); 1] = [("optimizer", "kind")];
/// Model keys that may change: they affect the computation, or training only.
const CHANGEABLE_MODEL_KEYS: [&str; 5] =
    ["shape", "from", "dropout", "activation_checkpointing", "cross_entropy_splits"];
/// Keys of experts that may change: they affect training only.
const CHANGEABLE_EXPERT_KEYS: [&str; 4] = ["capacity_factor", "balance_loss", "bias_rate", "z_loss"];
