//! Values that forward saves for backward.

use super::Pass;
use crate::error::Result;
use std::any::Any;

/// Values that forward saves for backward, as a stack.
#[derive(Default)]
pub struct Tape(Vec<Box<dyn Any + Send>>);

impl Tape {
    /// Returns true if everything saved has been restored.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Pass<'_> {
    /// Saves `value` for backward, if there will be one.
    pub fn save<T: Send + 'static>(&mut self, value: T) {
        if self.saves_activations {
            self.tape().0.push(Box::new(value));
        }
    }

    /// Restores the value saved last.
    ///
    /// # Panics
    /// Panics if nothing is left, or if the value has another type: the module does not restore
    /// what it saved.
    pub fn restore<T: Send + 'static>(&mut self) -> T {
        let saved = self.tape().0.pop().expect("backward follows forward");
        *saved.downcast().expect("modules take back what they saved, in reverse order")
    }

    /// Runs `body` with an empty tape, and returns its result and the tape.
    ///
    /// # Errors
    /// Returns the error of `body`.
    pub fn with_new_tape<R>(&mut self, body: impl FnOnce(&mut Self) -> Result<R>) -> Result<(R, Tape)> {
        let tape = std::mem::take(self.tape());
        let result = body(self);
        // The outer tape is put back before an error returns, because its values belong to modules
        // around `body`.
        let aside = std::mem::replace(self.tape(), tape);
        Ok((result?, aside))
    }

    /// Runs `body`, a part of forward, again in backward.
    ///
    /// # Errors
    /// Returns the error of `body`.
    pub fn recompute<R>(&mut self, body: impl FnOnce(&mut Self) -> Result<R>) -> Result<R> {
        // A repeated forward would count losses and metrics twice.
        let outer = std::mem::replace(&mut self.added.is_paused, true);
        let result = body(self);
        self.added.is_paused = outer;
        result
    }
}
