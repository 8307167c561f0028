//! Which map is cut how, by name.

use crate::error::{Error, Result};
use crate::parameter::pattern::{matches, suggestions};
use std::cell::RefCell;
use std::collections::BTreeSet;

/// How a map is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParallelStyle {
    /// Not at all: every rank has all of it.
    Replicated,
    /// By outputs, which are `blocks` equal blocks of grains that stay together.
    Column {
        /// Blocks that are cut alike.
        blocks: usize,
        /// Outputs that stay together.
        grain: usize,
    },
    /// By inputs, of grains that stay together.
    Row {
        /// Inputs that stay together.
        grain: usize,
    },
}

/// Styles by the path of a map; `*` stands for one part of a path: `h.*.mlp.c_fc`. What is not named stays whole.
#[derive(Clone, Debug, Default)]
pub struct ParallelPlan {
    rules: Vec<(String, ParallelStyle)>,
    matched_paths: RefCell<BTreeSet<String>>,
}

impl ParallelPlan {
    /// Of these lines; the first that fits a path counts.
    pub fn new<'a>(lines: impl IntoIterator<Item = (&'a str, ParallelStyle)>) -> Self {
        let lines = lines.into_iter().map(|(path, style)| (path.to_owned(), style)).collect();
        Self { rules: lines, matched_paths: RefCell::default() }
    }

    /// How the map at `path` is cut.
    pub(crate) fn style(&self, path: &str) -> ParallelStyle {
        self.matched_paths.borrow_mut().insert(path.to_owned());
        let line = self.rules.iter().find(|(pattern, _)| matches(pattern, path));
        line.map_or(ParallelStyle::Replicated, |(_, style)| *style)
    }

    /// That every line named a map.
    pub(crate) fn check(&self) -> Result<()> {
        let asked = self.matched_paths.borrow();
        let idle = self.rules.iter().find(|(pattern, _)| !asked.iter().any(|path| matches(pattern, path)));
        let Some((pattern, _)) = idle else { return Ok(()) };
        let near = suggestions(pattern, asked.iter().map(String::as_str));
        Err(Error::invalid(format!("no map is called `{pattern}`; near are {near}")))
    }
}
