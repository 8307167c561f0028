//! What a run learns from, known again.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Numbered samples, by what it takes to know them again: a position in these means nothing in others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetId {
    /// What it is called, for people.
    pub name: String,
    /// Samples.
    pub samples: u64,
    /// A number for some of them, spread over all.
    pub hash: u64,
}

impl DatasetId {
    /// Whether both have the same samples under the same numbers, as far as one can see; names do not matter.
    pub fn is_same(&self, other: &Self) -> bool {
        (self.samples, self.hash) == (other.samples, other.hash)
    }
}

impl fmt::Display for DatasetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`, {} samples, hash {:016x}", self.name, self.samples, self.hash)
    }
}
