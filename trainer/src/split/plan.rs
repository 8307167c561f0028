//! Which map is cut how, by name.

use crate::error::{Error, Result};
use crate::parameter::pattern::{fits, near};
use std::cell::RefCell;
use std::collections::BTreeSet;

/// How a map is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Not at all: every rank has all of it.
    Whole,
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
pub struct Plan {
    lines: Vec<(String, Style)>,
    asked: RefCell<BTreeSet<String>>,
}

impl Plan {
    /// Of these lines; the first that fits a path counts.
    pub fn new<'a>(lines: impl IntoIterator<Item = (&'a str, Style)>) -> Self {
        let lines = lines.into_iter().map(|(path, style)| (path.to_owned(), style)).collect();
        Self { lines, asked: RefCell::default() }
    }

    /// How the map at `path` is cut.
    pub(super) fn style(&self, path: &str) -> Style {
        self.asked.borrow_mut().insert(path.to_owned());
        let line = self.lines.iter().find(|(pattern, _)| fits(pattern, path));
        line.map_or(Style::Whole, |(_, style)| *style)
    }

    /// That every line named a map.
    pub(super) fn check(&self) -> Result<()> {
        let asked = self.asked.borrow();
        let idle = self.lines.iter().find(|(pattern, _)| !asked.iter().any(|path| fits(pattern, path)));
        let Some((pattern, _)) = idle else { return Ok(()) };
        let near = near(pattern, asked.iter().map(String::as_str));
        Err(Error::illegal(format!("no map is called `{pattern}`; near are {near}")))
    }
}
