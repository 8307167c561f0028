//! Optimisers: how weights follow from gradients, element by element.

mod adamw;
mod sgd;

pub use adamw::AdamW;
pub use sgd::Sgd;

/// What is the same for all parameters of one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Number of the step, from 1.
    pub number: u64,
    /// Learning rate.
    pub rate: f32,
    /// Factor on every gradient: what clipping makes of it.
    pub factor: f32,
}

/// Some elements of one parameter, with what belongs to them.
pub struct Span<'a> {
    /// The weights, to change.
    pub weights: &'a mut [f32],
    /// Their gradient.
    pub gradient: &'a [f32],
    /// Their moments: as many arrays as [`Optimiser::moments`] says.
    pub moments: &'a mut [&'a mut [f32]],
    /// Whether weight decay applies.
    pub decays: bool,
}

/// An optimiser that treats every element by itself, so that any rank may keep the state of any elements.
pub trait Optimiser: Send + Sync {
    /// Numbers that it keeps for every element.
    fn moments(&self) -> usize;

    /// Changes the weights of `span`.
    fn update(&self, span: Span<'_>, step: &Step);
}

#[cfg(test)]
mod tests;
