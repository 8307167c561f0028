//! Tensor parallel plan: sharding of layers by name.

use std::cell::RefCell;
use std::collections::BTreeSet;
use unisono_nn::error::{Error, Result};
use unisono_nn::parameter::pattern::{matches, suggestions};

/// Sharding of a linear layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParallelStyle {
    /// Replicated on every rank.
    Replicated,
    /// Sharded by outputs, in `blocks` equal blocks.
    Column {
        /// Number of blocks that are sharded alike.
        blocks: usize,
        /// Number of outputs that stay together.
        grain: usize,
    },
    /// Sharded by outputs: queries, keys and values. More ranks than heads of keys repeat these
    /// heads, if ranks divide the heads of queries and are a multiple of the heads of keys.
    QueryKeyValue {
        /// Number of query heads per key head. They stay together.
        ratio: usize,
        /// Number of features of a head.
        head: usize,
    },
    /// Sharded by inputs.
    Row {
        /// Number of inputs that stay together.
        grain: usize,
    },
}

/// Sharding by the path of a layer, such as `h.*.mlp.c_fc`. `*` matches one component of a path.
/// Other layers are replicated.
#[derive(Clone, Debug, Default)]
pub struct ParallelPlan {
    rules: Vec<(String, ParallelStyle)>,
    matched_paths: RefCell<BTreeSet<String>>,
}

impl ParallelPlan {
    /// Creates a plan from these rules. If several rules match a path, the first one applies.
    pub fn new<'a>(lines: impl IntoIterator<Item = (&'a str, ParallelStyle)>) -> Self {
        let lines = lines.into_iter().map(|(path, style)| (path.to_owned(), style)).collect();
        Self { rules: lines, matched_paths: RefCell::default() }
    }

    /// Returns the sharding of the layer at `path`.
    pub(crate) fn style(&self, path: &str) -> ParallelStyle {
        // Paths without a rule are recorded, too, because `check` suggests names out of all paths.
        self.matched_paths.borrow_mut().insert(path.to_owned());
        let line = self.rules.iter().find(|(pattern, _)| matches(pattern, path));
        line.map_or(ParallelStyle::Replicated, |(_, style)| *style)
    }

    /// Checks that every rule has matched a layer.
    pub(crate) fn check(&self) -> Result<()> {
        let paths = self.matched_paths.borrow();
        let idle = self.rules.iter().find(|(pattern, _)| !paths.iter().any(|path| matches(pattern, path)));
        let Some((pattern, _)) = idle else { return Ok(()) };
        let suggested = suggestions(pattern, paths.iter().map(String::as_str));
        Err(Error::invalid(format!("no map is called `{pattern}`; near are {suggested}")))
    }
}
