//! Keys that differ between the configuration of a checkpoint and that of a run.

use crate::config::{Config, read};
use std::fmt;
use toml::{Table, Value};
use unisono_nn::error::Result;

/// Key with another value than when a checkpoint was saved.
#[derive(Clone, Debug, PartialEq)]
pub struct ChangedKey {
    /// Path of the key.
    pub key: String,
    /// Value in the checkpoint, as TOML.
    pub saved: String,
    /// Value in the run, as TOML.
    pub now: String,
}

impl ChangedKey {
    /// Returns true if the change leaves the meaning of the run as it was: the same samples, model
    /// and updates, up to rounding.
    pub fn is_free(&self) -> bool {
        let section = self.key.split_once('.').map_or("", |(section, _)| section);
        match section {
            "strategy" => !ROUNDING_KEYS.contains(&self.key.as_str()),
            _ => FREE_SECTIONS.contains(&section) || FREE_KEYS.contains(&self.key.as_str()),
        }
    }
}

impl fmt::Display for ChangedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {} (saved: {})", self.key, self.now, self.saved)
    }
}

/// Sections that may change between a checkpoint and its resumption.
const FREE_SECTIONS: [&str; 6] = ["mesh", "context", "pipeline", "log", "checkpoint", "sample"];

/// Single keys that may change. Keys of the data are here because its samples are compared.
const FREE_KEYS: [&str; 20] = [
    "threads",
    "check_memory",
    "device",
    "model.shape",
    "model.from",
    "model.activation_checkpointing",
    "model.cross_entropy_splits",
    "data.kind",
    "data.path",
    "data.extensions",
    "data.validation",
    "data.validation_path",
    "data.vocabulary",
    "data.tokenizer",
    "data.end_of_text",
    "data.micro_batch",
    "data.breadth_first",
    "data.micro_sequences",
    "data.workers",
    "schedule.steps",
];

/// Keys of the strategy that change the precision of weights or gradients.
const ROUNDING_KEYS: [&str; 4] =
    ["strategy.param_dtype", "strategy.reduce_dtype", "strategy.fp32_grad_accum", "strategy.unused"];

/// Keys that say how to resume, and so differ by their nature.
const RESUME_KEYS: [&str; 2] = ["checkpoint.resume", "checkpoint.allow_changes"];

impl Config {
    /// Returns the keys with another value than in the configuration `saved`, a TOML text. Keys
    /// that only one of them has are left out, because another version saved it.
    ///
    /// # Errors
    /// [`Error::Invalid`](unisono_nn::error::Error::Invalid) if a number is too large for TOML.
    pub fn changes_since(&self, saved: &str) -> Result<Vec<ChangedKey>> {
        let saved = saved.parse::<Table>().unwrap_or_default();
        let mut changes = Vec::new();
        collect(&saved, &read::to_table(self)?, "", &mut changes);
        changes.retain(|change| !RESUME_KEYS.contains(&change.key.as_str()));
        Ok(changes)
    }

    /// Returns the paths of the keys that are not at their defaults.
    pub(crate) fn keys_off_default(&self) -> Result<Vec<String>> {
        let mut changes = Vec::new();
        collect(&read::to_table(&Self::default())?, &read::to_table(self)?, "", &mut changes);
        Ok(changes.into_iter().map(|change| change.key).collect())
    }

    /// Returns true if `checkpoint.allow_changes` names `key` or its section.
    pub fn allows_change(&self, key: &str) -> bool {
        let section = key.split_once('.').map_or(key, |(section, _)| section);
        self.checkpoint.allow_changes.iter().any(|allowed| allowed == key || allowed == section)
    }
}

fn collect(saved: &Table, now: &Table, prefix: &str, changes: &mut Vec<ChangedKey>) {
    for (key, now) in now {
        let path = format!("{prefix}{key}");
        match (saved.get(key), now) {
            (Some(Value::Table(saved)), Value::Table(now)) => {
                collect(saved, now, &format!("{path}."), changes);
            }
            (Some(saved), now) if saved != now => {
                changes.push(ChangedKey { key: path, saved: saved.to_string(), now: now.to_string() });
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_keys_exist_and_other_keys_are_not_free() {
        let defaults = read::to_table(&Config::default()).unwrap();
        for key in FREE_KEYS.iter().chain(&ROUNDING_KEYS).chain(&RESUME_KEYS) {
            let (section, key) = key.split_once('.').unwrap_or(("", key));
            let table = defaults.get(section).and_then(Value::as_table).unwrap_or(&defaults);
            assert!(table.contains_key(key), "{section}.{key}");
        }
        FREE_SECTIONS.iter().for_each(|section| assert!(defaults[*section].is_table(), "{section}"));
        let is_free = |key: &str| {
            ChangedKey { key: key.to_owned(), saved: String::new(), now: String::new() }.is_free()
        };
        for key in ["seed", "data.global_batch", "optimizer.lr", "schedule.warmup", "model.dropout"] {
            assert!(!is_free(key), "{key}");
        }
        assert!(is_free("strategy.kind") && is_free("mesh.tensor") && !is_free("strategy.param_dtype"));
    }

    #[test]
    fn changes_name_key_and_both_values() {
        let saved = Config::default().to_toml().unwrap();
        let words = ["optimizer.lr=1.0", "checkpoint.resume=true", "log.every=3"].map(str::to_owned);
        let changes = Config::load(None, &words).unwrap().changes_since(&saved).unwrap();
        let words: Vec<String> = changes.iter().map(ChangedKey::to_string).collect();
        assert_eq!(words, ["log.every = 3 (saved: 10)", "optimizer.lr = 1.0 (saved: 0.002)"]);
        let older = saved.replace("kind = \"adamw\"\n", "").replace("every = 10", "was_every = 9");
        assert_eq!(Config::default().changes_since(&older).unwrap(), []);
    }
}
