//! Ways to the keys and values of other ranks.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Way in which attention gets the keys and values of the ranks that share sequences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum KvTransfer {
    /// Gathers the keys and values of whole sequences: memory for a whole sequence, and one
    /// message.
    #[default]
    Gather,
    /// Passes keys and values round the ranks while attention is computed: memory for a few chunks.
    /// With `context.ulysses_ranks`, neighbors also exchange positions for heads.
    Ring,
    /// Exchanges positions of all heads for all positions of some heads: memory as for chunks, and
    /// messages of 1/N of the values. At most as many ranks as heads have work.
    Ulysses,
}

impl KvTransfer {
    /// Returns the number of neighbors that exchange positions for heads, among `ranks` that share
    /// sequences. Keys and values go round groups of this size. `None` if they are gathered.
    pub fn head_group_size(self, ranks: usize, ulysses_ranks: usize) -> Option<usize> {
        match self {
            _ if ranks == 1 => None,
            Self::Gather => None,
            Self::Ring => Some(ulysses_ranks),
            Self::Ulysses => Some(ranks),
        }
    }
}
