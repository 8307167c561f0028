//! Tables of vectors, looked up by number.

use super::vector::vectorised;
use crate::error::{Error, Result};
use crate::parameter::{Init, Parameter, ParameterId, Registry};
use crate::pass::Pass;
use crate::tensor::Tensor;

/// Row i of the output is row `indices[i]` of the table: of tokens, of positions.
///
/// (indices) → (indices, width). Keeps the indices.
pub struct Embedding {
    weight: ParameterId,
    count: usize,
    width: usize,
}

impl Embedding {
    /// With `weight` of `count` × `width`.
    pub fn new(registry: &mut Registry, count: usize, width: usize, init: Init) -> Self {
        Self { weight: registry.add(Parameter::new("weight", &[count, width], init)), count, width }
    }

    /// The table.
    pub fn weight(&self) -> ParameterId {
        self.weight
    }

    /// The vectors of `indices`.
    ///
    /// # Errors
    /// For an index that the table does not have.
    pub fn forward(&self, pass: &mut Pass<'_>, indices: Vec<u32>) -> Result<Tensor> {
        if let Some(index) = indices.iter().find(|index| **index as usize >= self.count) {
            return Err(Error::illegal(format!("index {index} into a table of {}", self.count)));
        }
        let mut output = pass.tensor(indices.len(), self.width);
        let table = pass.weights(self.weight);
        for (row, index) in output.data_mut().chunks_exact_mut(self.width).zip(&indices) {
            row.copy_from_slice(&table[*index as usize * self.width..][..self.width]);
        }
        pass.save(indices);
        Ok(output)
    }

    /// Adds to the gradient of the table.
    ///
    /// # Errors
    /// Of collectives.
    pub fn backward(&self, pass: &mut Pass<'_>, gradient: &Tensor) -> Result<()> {
        let indices: Vec<u32> = pass.restore();
        let rows = gradient.data().chunks_exact(self.width);
        pass.accumulate(self.weight, |_, table| {
            vectorised(
                #[inline(always)]
                || {
                    for (row, index) in rows.zip(indices) {
                        let into = &mut table[index as usize * self.width..][..self.width];
                        into.iter_mut().zip(row).for_each(|(into, from)| *into += from);
                    }
                },
            );
        })
    }
}
