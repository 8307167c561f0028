//! Feed-forward parts of several experts, over rows that are sorted by expert.

use super::row_ranges;
use crate::tensor_parallel::TensorParallel;
use std::ops::Range;
use unisono_nn::error::Result;
use unisono_nn::modules::LinearInit;
use unisono_nn::ops::{Activation, Mat, ValuesMut};
use unisono_nn::parameter::{Domain, Parameter, ParameterId, Registry, Residency};
use unisono_nn::pass::Pass;
use unisono_nn::tensor::Tensor;

/// Dimensions of an expert: y = W₂ f(W₁ x), without biases.
#[derive(Clone, Copy, Debug)]
pub struct ExpertShape {
    /// Features of a row.
    pub features: usize,
    /// Hidden features.
    pub hidden: usize,
    /// Makes f a SwiGLU, whose W₁ has gates and values. Otherwise f is a GELU.
    pub is_gated: bool,
    /// Initial values of W₁ and W₂.
    pub init: [LinearInit; 2],
}

impl ExpertShape {
    /// Returns the rows of W₁ per hidden feature.
    fn gates(&self) -> usize {
        if self.is_gated { 2 } else { 1 }
    }

    /// Returns this rank's parts of W₁ and W₂, to be added as `c_fc.weight` and `c_proj.weight`.
    pub(super) fn weights(&self, split: &TensorParallel) -> [Parameter; 2] {
        let (features, rows) = (self.features, self.gates() * self.hidden);
        let cuts = [split.shard(0, rows, self.gates(), 1), split.shard(1, self.hidden, 1, 1)];
        let shapes = [[rows, features], [features, self.hidden]];
        let parameters =
            shapes.iter().zip(self.init).map(|(size, init)| Parameter::new("weight", size, init.weight));
        let cut = parameters.zip(cuts).map(|(parameter, cut)| match cut {
            Some(cut) => parameter.with_shard(cut),
            None => parameter,
        });
        cut.collect::<Vec<_>>().try_into().expect("two matrices")
    }
}

/// Experts of one layer, of which this rank has some.
///
/// Each row is multiplied by the matrices of its expert. Rows of an expert are adjacent, and there
/// is no padding between experts.
#[derive(Clone)]
pub(super) struct GroupedExperts {
    /// W₁ and W₂ of this rank's experts.
    weights: Vec<[ParameterId; 2]>,
    shape: ExpertShape,
    /// Hidden features of this rank's part of each expert.
    hidden: usize,
}

struct Saved {
    counts: Vec<usize>,
    input: Tensor,
    /// Products with W₁, before the activation.
    sums: Tensor,
    activated: Tensor,
}

impl GroupedExperts {
    /// Adds the parameters of `count` experts, of which this rank has `present`, each sharded over
    /// the tensor parallel ranks.
    pub(super) fn new(
        registry: &mut Registry,
        count: usize,
        present: Range<usize>,
        shape: ExpertShape,
        split: &TensorParallel,
    ) -> Self {
        let matrices = shape.weights(split);
        let hidden = matrices[1].shape[1];
        let add = |registry: &mut Registry, number: usize| {
            // Experts of other ranks are registered as well, because a parameter has one number on
            // all ranks.
            let residency = if present.contains(&number) { Residency::Own } else { Residency::Elsewhere };
            [("c_fc", 0), ("c_proj", 1)].map(|(name, index)| {
                let parameter = Parameter { domain: Domain::Expert, residency, ..matrices[index].clone() };
                registry.scope(name, |registry| registry.add(parameter))
            })
        };
        let added = (0..count).map(|number| registry.scope(&format!("experts.{number}"), |r| add(r, number)));
        let added: Vec<_> = added.collect();
        Self { weights: added[present].to_vec(), shape, hidden }
    }

    /// Computes the output of `counts[i]` rows for this rank's expert i.
    pub(super) fn forward(&self, pass: &mut Pass<'_>, input: Tensor, counts: &[usize]) -> Result<Tensor> {
        let (rows, columns) = (input.rows(), self.shape.gates() * self.hidden);
        let mut sums = pass.tensor(rows, columns);
        self.multiply(pass, 0, counts, &input, &mut sums, true)?;
        let mut activated = pass.tensor(rows, self.hidden);
        match self.shape.is_gated {
            true => pass.ops().swiglu(activated.values_mut(), sums.values(), self.hidden)?,
            false => pass.ops().activation(Activation::GeluTanh, activated.values_mut(), sums.values())?,
        }
        let mut output = pass.tensor(rows, self.shape.features);
        self.multiply(pass, 1, counts, &activated, &mut output, true)?;
        pass.save(Saved { counts: counts.to_vec(), input, sums, activated });
        Ok(output)
    }

    /// Computes the gradient of the input.
    pub(super) fn backward(&self, pass: &mut Pass<'_>, gradient: Tensor) -> Result<Tensor> {
        let Saved { counts, input, mut sums, activated } = pass.restore();
        let rows = input.rows();
        let mut of_activated = pass.tensor(rows, self.hidden);
        self.multiply(pass, 1, &counts, &gradient, &mut of_activated, false)?;
        match self.shape.is_gated {
            true => pass.ops().swiglu_backward(sums.values_mut(), of_activated.values(), self.hidden)?,
            false => {
                let inputs = sums.copy()?;
                sums = of_activated;
                pass.ops().activation_backward(Activation::GeluTanh, sums.values_mut(), inputs.values())?;
            }
        }
        let mut of_input = pass.tensor(rows, self.shape.features);
        self.multiply(pass, 0, &counts, &sums, &mut of_input, false)?;
        let experts = self.clone();
        let add = move |pass: &mut Pass<'_>| {
            experts.add_gradients(pass, 1, &counts, &gradient, &activated)?;
            experts.add_gradients(pass, 0, &counts, &sums, &input)
        };
        // Zero-bubble schedules compute these gradients later, in time that the rank would wait.
        if pass.defers() {
            pass.defer(add)
        } else {
            add(pass)?
        }
        Ok(of_input)
    }

    /// Multiplies the rows of each expert by its matrix `which`, transposed or not.
    fn multiply(
        &self,
        pass: &Pass<'_>,
        which: usize,
        counts: &[usize],
        input: &Tensor,
        output: &mut Tensor,
        transposed: bool,
    ) -> Result<()> {
        let [inputs, outputs] = [input.columns(), output.columns()];
        for (rows, weights) in row_ranges(counts).into_iter().zip(&self.weights) {
            let weight = pass.weights_view(weights[which])?;
            let matrix = match transposed {
                true => Mat::new(weight.values(), outputs, inputs).t(),
                false => Mat::new(weight.values(), inputs, outputs),
            };
            let output_rows = &mut output.data_mut()[rows.start * outputs..rows.end * outputs];
            let target = Mat::new(ValuesMut::Host(output_rows), rows.len(), outputs);
            let part = input.values().slice(rows.start * inputs..rows.end * inputs);
            pass.ops().matmul(target, 0.0, 1.0, Mat::new(part, rows.len(), inputs), matrix)?;
        }
        Ok(())
    }

    /// Adds the gradients of the matrix `which` of each expert, from those of its outputs.
    fn add_gradients(
        &self,
        pass: &mut Pass<'_>,
        which: usize,
        counts: &[usize],
        of_output: &Tensor,
        input: &Tensor,
    ) -> Result<()> {
        let [outputs, inputs] = [of_output.columns(), input.columns()];
        // Buckets are packed from the last parameter to the first, so in this order the first
        // bucket is complete first.
        for (rows, weights) in row_ranges(counts).into_iter().zip(&self.weights).rev() {
            let part = |columns: usize| rows.start * columns..rows.end * columns;
            let slope = of_output.values().slice(part(outputs));
            let input = input.values().slice(part(inputs));
            pass.accumulate(weights[which], |ops, gradient| {
                let (slope, input) =
                    (Mat::new(slope, rows.len(), outputs), Mat::new(input, rows.len(), inputs));
                ops.matmul(Mat::new(gradient, outputs, inputs), 1.0, 1.0, slope.t(), input)
            })?;
        }
        Ok(())
    }
}
