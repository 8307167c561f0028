//! Optimizer steps.

use crate::device::compute::{Compute, as_device_mut_ptr, as_device_ptr, check_len};
use crate::device::model::{AdamW, MuonMomentum};
use crate::device::{GpuError, View, ViewMut};

/// Parameters of a step of AdamW.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamStep {
    /// Multiplies gradients.
    pub factor: f32,
    /// β₁, β₂.
    pub betas: (f32, f32),
    /// The learning rate, over the first moments' bias.
    pub rate: f32,
    /// The root of the second moments' bias.
    pub root: f32,
    /// ε.
    pub epsilon: f32,
    /// Factor of a weight by weight decay.
    pub keep: f32,
}

impl Compute {
    /// A step of AdamW with some elements, and their two moments.
    ///
    /// # Errors
    /// If lengths differ, and of the driver.
    pub fn adamw(
        &self,
        step: AdamStep,
        weights: ViewMut<'_, f32>,
        gradient: View<'_, f32>,
        [first, second]: [ViewMut<'_, f32>; 2],
    ) -> Result<(), GpuError> {
        let count = weights.len();
        [gradient.len(), first.len(), second.len()]
            .into_iter()
            .try_for_each(|found| check_len(found, count))?;
        let (first_beta, second_beta) = step.betas;
        let arguments = AdamW {
            weights: as_device_mut_ptr(&weights),
            gradient: as_device_ptr(&gradient),
            first: as_device_mut_ptr(&first),
            second: as_device_mut_ptr(&second),
            count: count as u64,
            factor: step.factor,
            less: [1.0 - first_beta, 1.0 - second_beta],
            beta: second_beta,
            rate: step.rate,
            root: step.root,
            epsilon: step.epsilon,
            keep: step.keep,
        };
        let [weights, first, second] = [&weights, &first, &second].map(ViewMut::as_view);
        let memories = [weights.memory, gradient.memory, first.memory, second.memory];
        // SAFETY: pointers are to views of this length.
        unsafe { self.launch("adamw", self.linear(count), &memories, &arguments) }
    }

    /// Adds `factor` times the gradient to the moment, and writes the direction of Muon's step to
    /// `direction`.
    ///
    /// # Errors
    /// Lengths differ, or the driver fails.
    pub fn muon_momentum(
        &self,
        gradient: View<'_, f32>,
        moment: ViewMut<'_, f32>,
        direction: ViewMut<'_, f32>,
        factor: f32,
        momentum: f32,
    ) -> Result<(), GpuError> {
        let count = gradient.len();
        [moment.len(), direction.len()].into_iter().try_for_each(|found| check_len(found, count))?;
        let arguments = MuonMomentum {
            gradient: as_device_ptr(&gradient),
            moment: as_device_mut_ptr(&moment),
            direction: as_device_mut_ptr(&direction),
            count: count as u64,
            factor,
            momentum,
        };
        let (moment, direction) = (moment.as_view(), direction.as_view());
        let memories = [gradient.memory, moment.memory, direction.memory];
        // SAFETY: pointers are to views of this length.
        unsafe { self.launch("muon_momentum", self.linear(count), &memories, &arguments) }
    }
}
