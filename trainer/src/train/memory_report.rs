//! Memory of a rank by class, measured and predicted.

use std::fmt;
use unisono_nn::allocator::{AllocClass, Allocator};

/// Bytes of each class, between backward and step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryReport {
    /// Counted bytes, current and peak; zero before the first step.
    pub classes: [(usize, usize); AllocClass::ALL.len()],
    /// Predicted bytes: kept weights, gradients and optimizer state, the peak of activations, and
    /// offloaded bytes.
    pub formulas: [usize; 5],
}

impl MemoryReport {
    /// Updates the counted bytes.
    pub(super) fn update(&mut self, memory: &Allocator) {
        self.classes = AllocClass::ALL.map(|class| {
            let usage = memory.usage(class);
            (usage.current, usage.peak)
        });
    }

    /// Updates the counted bytes of the optimizer's state, which the first step makes.
    pub(super) fn update_state(&mut self, memory: &Allocator) {
        let usage = memory.usage(AllocClass::Optimizer);
        self.classes[AllocClass::Optimizer as usize] = (usage.current, usage.peak);
    }

    /// Returns the counted bytes of weights, gradients and optimizer state.
    pub fn measured(&self) -> usize {
        self.classes[..3].iter().map(|class| class.0).sum()
    }

    /// Returns the predicted bytes of weights, gradients and optimizer state.
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
