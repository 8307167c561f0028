//! What a rank keeps, measured and by formula, class by class.

use crate::memory::{Class, Memory};
use std::fmt;

/// Bytes of each class, between backward and the step of the optimiser.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// What was counted, now and at most; nothing before the first step.
    pub classes: [(usize, usize); Class::ALL.len()],
    /// What the formulas say of weights, gradients and the optimiser's state: what is kept; of activations: the most; and of what
    /// is offloaded.
    pub formulas: [usize; 5],
}

impl Ledger {
    /// Counts what is kept.
    pub(super) fn count(&mut self, memory: &Memory) {
        self.classes = Class::ALL.map(|class| {
            let usage = memory.usage(class);
            (usage.now, usage.peak)
        });
    }

    /// Bytes kept of weights, gradients and the optimiser's state.
    pub fn measured(&self) -> usize {
        self.classes[..3].iter().map(|class| class.0).sum()
    }

    /// The same by formula.
    pub fn formula(&self) -> usize {
        self.formulas[..3].iter().sum()
    }
}

impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<14}{:>12}{:>12}{:>12}", "bytes a rank", "kept", "formula", "most")?;
        for (index, class) in Class::ALL.into_iter().enumerate() {
            let (kept, most) = self.classes[index];
            let formula = self.formulas.get(index).map_or("-".to_owned(), usize::to_string);
            writeln!(f, "{:<14}{kept:>12}{formula:>12}{most:>12}", class.name())?;
        }
        Ok(())
    }
}
