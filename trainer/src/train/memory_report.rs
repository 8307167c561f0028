//! What a rank keeps, measured and by formula, class by class.

use crate::allocator::{AllocClass, Allocator};
use std::fmt;

/// Bytes of each class, between backward and the step of the optimizer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryReport {
    /// What was counted, now and at most; nothing before the first step.
    pub classes: [(usize, usize); AllocClass::ALL.len()],
    /// What the formulas say of weights, gradients and the optimizer's state: what is kept; of activations: the most; and of what
    /// is offloaded.
    pub formulas: [usize; 5],
}

impl MemoryReport {
    /// Counts what is kept.
    pub(super) fn update(&mut self, memory: &Allocator) {
        self.classes = AllocClass::ALL.map(|class| {
            let usage = memory.usage(class);
            (usage.current, usage.peak)
        });
    }

    /// Bytes kept of weights, gradients and the optimizer's state.
    pub fn measured(&self) -> usize {
        self.classes[..3].iter().map(|class| class.0).sum()
    }

    /// The same by formula.
    pub fn formula(&self) -> usize {
        self.formulas[..3].iter().sum()
    }
}

impl fmt::Display for MemoryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<14}{:>12}{:>12}{:>12}", "bytes a rank", "kept", "formula", "most")?;
        for (index, class) in AllocClass::ALL.into_iter().enumerate() {
            let (kept, most) = self.classes[index];
            let formula = self.formulas.get(index).map_or("-".to_owned(), usize::to_string);
            writeln!(f, "{:<14}{kept:>12}{formula:>12}{most:>12}", class.name())?;
        }
        Ok(())
    }
}
