//! Identity of a data set, to recognize it when a run resumes.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Identity of numbered samples. A position in one data set has no meaning in another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetId {
    /// Name for messages.
    pub name: String,
    /// Number of samples.
    pub samples: u64,
    /// Hash of samples spread over the whole set.
    pub hash: u64,
}

impl DatasetId {
    /// Returns true if both have equal samples under equal numbers, as far as the hash shows. Names
    /// do not matter.
    pub fn is_same(&self, other: &Self) -> bool {
        (self.samples, self.hash) == (other.samples, other.hash)
    }
}

impl fmt::Display for DatasetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`, {} samples, hash {:016x}", self.name, self.samples, self.hash)
    }
}
