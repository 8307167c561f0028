//! Activation checkpointing: backward computes activations again that forward did not save.

use crate::error::Result;
use crate::modules::Module;
use crate::pass::Pass;
use crate::tensor::Tensor;

/// Saves its input only, and runs forward again in backward (Chen, Xu, Zhang, Guestrin, "Training
/// deep nets with sublinear memory cost", 2016).
///
/// Gradients are bitwise equal to those without recomputation.
pub struct ActivationCheckpoint<M>(pub M);

impl<M: Module> Module for ActivationCheckpoint<M> {
    fn forward(&self, pass: &mut Pass<'_>, input: Tensor) -> Result<Tensor> {
        // Without a backward nothing is saved, so a copy of the input would never be used.
        if !pass.keeps() {
            return self.0.forward(pass, input);
        }
        // The module takes its input and may overwrite it, so backward needs a copy.
        let copy = input.copy()?;
        pass.save(copy);
        // The values that the module saves are dropped, and backward computes them again.
        let (output, _) = pass.with_new_tape(|pass| self.0.forward(pass, input))?;
        Ok(output)
    }

    fn backward(&self, pass: &mut Pass<'_>, gradient: Tensor) -> Result<Tensor> {
        let input: Tensor = pass.restore();
        // This forward saves on the tape what the backward of the module restores, and the output
        // is not needed.
        pass.recompute(|pass| self.0.forward(pass, input))?;
        self.0.backward(pass, gradient)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modules::GradCheck;
    use crate::modules::containers::tests::body;

    #[test]
    fn activation_checkpoint_is_exact() {
        let (plain, checkpointed) =
            (GradCheck::new(body, 4, 5), GradCheck::new(|r| ActivationCheckpoint(body(r)), 4, 5));
        assert_eq!(plain.forward_and_backward(), checkpointed.forward_and_backward());
        assert_eq!(plain.weight_gradients(), checkpointed.weight_gradients());
    }
}
