//! Ways to the keys and values of other ranks.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Way in which attention gets the keys and values of the ranks that share sequences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum KvTransfer {
    /// All of a sequence are gathered: memory for a whole sequence, and one message.
    #[default]
    Gather,
    /// They go round the ranks while attention is computed: memory for a few chunks.
    Ring,
    /// Ranks exchange their positions for heads: memory as for chunks, and messages of 1/N of the
    /// values. At most as many ranks as heads have work.
    Ulysses,
}
