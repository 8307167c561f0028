//! Embedding tables.

use crate::error::{Error, Result};
use crate::ops::{NOT_LOCAL, RowIndices};
use crate::parameter::{Init, Parameter, ParameterId, Registry, ShardSpec};
use crate::pass::Pass;
use crate::tensor::Tensor;
use unisono_cuda::device::compute::Indices;

/// Copies row `indices[i]` of the table to output row i: an embedding of tokens or positions.
///
/// (indices) → (indices, width). Saves the indices.
pub struct Embedding {
    weight: ParameterId,
    count: usize,
    width: usize,
    sharded: Option<ShardSpec>,
}

impl Embedding {
    /// Creates the table `weight` of `count` × `width`.
    pub fn new(registry: &mut Registry, count: usize, width: usize, init: Init) -> Self {
        Self::cut(registry, count, width, init, None)
    }

    /// Creates a table of which this rank has the rows of `cut`. Vectors of other rows are zero, so
    /// that the sum over ranks is the whole result.
    pub fn cut(
        registry: &mut Registry,
        count: usize,
        width: usize,
        init: Init,
        cut: Option<ShardSpec>,
    ) -> Self {
        let table = Parameter::new("weight", &[count, width], init);
        let table = cut.iter().cloned().fold(table, Parameter::with_shard);
        Self { weight: registry.add(table), count, width, sharded: cut }
    }

    /// Returns the parameter of the table.
    pub fn weight(&self) -> ParameterId {
        self.weight
    }

    /// Returns the vectors of `indices`.
    ///
    /// # Errors
    /// Fails for an index outside of the table.
    pub fn forward(&self, pass: &mut Pass<'_>, mut indices: Vec<u32>) -> Result<Tensor> {
        // The range is checked first, because a sharded table takes every row that it lacks for one
        // of another rank.
        if let Some(index) = indices.iter().find(|index| **index as usize >= self.count) {
            return Err(Error::invalid(format!("index {index} into a table of {}", self.count)));
        }
        if let Some(cut) = &self.sharded {
            let local = |&index: &u32| cut.local_index(index as usize).map_or(NOT_LOCAL, |row| row as u32);
            indices.iter_mut().for_each(|index| *index = local(index));
        }
        let mut output = pass.tensor_in_place(indices.len(), self.width)?;
        let count = self.sharded.as_ref().map_or(self.count, ShardSpec::local_size);
        let indices = row_indices(pass, indices, count)?;
        pass.ops().embed(output.values_mut(), pass.weights_view(self.weight)?.values(), &indices)?;
        pass.save(indices);
        Ok(output)
    }

    /// Adds to the gradient of the table.
    ///
    /// # Errors
    /// Returns the error of a failed collective.
    pub fn backward(&self, pass: &mut Pass<'_>, gradient: &Tensor) -> Result<()> {
        let indices: RowIndices = pass.restore();
        pass.accumulate(self.weight, |ops, table| ops.embed_backward(table, gradient.values(), &indices))
    }
}

/// Moves row numbers of a table of `count` rows to the memory where modules compute.
fn row_indices(pass: &Pass<'_>, indices: Vec<u32>, count: usize) -> Result<RowIndices> {
    let Some(device) = pass.device() else { return Ok(RowIndices::Host(indices)) };
    let stream = device.compute().stream();
    Ok(RowIndices::Device(Indices::new(stream, &indices, count, Some(NOT_LOCAL))?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocator::Allocator;
    use crate::pass::Seeds;
    use crate::strategy::LocalStrategy;

    #[test]
    fn embedding_gathers_rows_and_accumulates_gradients() {
        let (mut registry, memory) = (Registry::default(), Allocator::default());
        let (_, table) = registry.unit("wte", |registry| Embedding::new(registry, 3, 2, Init::Zeros));
        let mut strategy = LocalStrategy::new(registry.finish(), &memory, 0);
        strategy.weights_mut(table.weight()).copy_from_slice(&[0.0, 1.0, 10.0, 11.0, 20.0, 21.0]);
        let mut pass = Pass::new(&mut strategy, &memory, Seeds::default(), 1);
        let output = table.forward(&mut pass, vec![2, 0, 2]).expect("rows");
        assert_eq!(output.data(), [20.0, 21.0, 0.0, 1.0, 20.0, 21.0]);
        let gradient = Tensor::from_slice(&memory, 3, 2, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        table.backward(&mut pass, &gradient).expect("gradient");
        assert_eq!(strategy.gradient_of(table.weight()), [3.0, 4.0, 0.0, 0.0, 6.0, 8.0]);
    }
}
