//! Tables of vectors, looked up by number.

mod device;

use super::vector::vectorised;
use crate::error::{Error, Result};
use crate::parameter::{Cut, Init, Parameter, ParameterId, Registry};
use crate::pass::Pass;
use crate::tensor::Tensor;

/// Row i of the output is row `indices[i]` of the table: of tokens, of positions.
///
/// (indices) → (indices, width). Keeps the indices.
pub struct Embedding {
    weight: ParameterId,
    count: usize,
    width: usize,
    cut: Option<Cut>,
}

impl Embedding {
    /// With `weight` of `count` × `width`.
    pub fn new(registry: &mut Registry, count: usize, width: usize, init: Init) -> Self {
        Self::cut(registry, count, width, init, None)
    }

    /// Of which this rank has the rows that `cut` says: the vectors of all others are zeros, and the whole is the sum.
    pub fn cut(registry: &mut Registry, count: usize, width: usize, init: Init, cut: Option<Cut>) -> Self {
        let table = Parameter::new("weight", &[count, width], init);
        let table = cut.iter().cloned().fold(table, Parameter::cut);
        Self { weight: registry.add(table), count, width, cut }
    }

    /// The row of the vector of `index` at this rank.
    fn place(&self, index: u32) -> Option<usize> {
        self.cut.as_ref().map_or(Some(index as usize), |cut| cut.in_part(index as usize))
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
        if let Some(device) = pass.device() {
            return self.forward_on(device, pass, &indices);
        }
        let mut output = pass.tensor(indices.len(), self.width);
        let table = pass.weights(self.weight);
        for (row, index) in output.data_mut().chunks_exact_mut(self.width).zip(&indices) {
            match self.place(*index) {
                Some(place) => row.copy_from_slice(&table[place * self.width..][..self.width]),
                None => row.fill(0.0),
            }
        }
        pass.save(indices);
        Ok(output)
    }

    /// Adds to the gradient of the table.
    ///
    /// # Errors
    /// Of collectives.
    pub fn backward(&self, pass: &mut Pass<'_>, gradient: &Tensor) -> Result<()> {
        if let Some(device) = pass.device() {
            return self.backward_on(device, pass, gradient);
        }
        let indices: Vec<u32> = pass.restore();
        let rows = gradient.data().chunks_exact(self.width);
        pass.accumulate(self.weight, |_, table| {
            vectorised(
                #[inline(always)]
                || {
                    for (row, index) in rows.zip(indices) {
                        let Some(place) = self.place(index) else { continue };
                        let into = &mut table[place * self.width..][..self.width];
                        into.iter_mut().zip(row).for_each(|(into, from)| *into += from);
                    }
                },
            );
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;
    use crate::pass::Seeds;
    use crate::strategy::Local;

    #[test]
    fn rows_are_looked_up_and_their_gradients_added_up() {
        let (mut registry, memory) = (Registry::default(), Memory::default());
        let (_, table) = registry.unit("wte", |registry| Embedding::new(registry, 3, 2, Init::Zeros));
        let mut strategy = Local::new(registry.finish(), &memory, 0);
        strategy.weights_mut(table.weight()).copy_from_slice(&[0.0, 1.0, 10.0, 11.0, 20.0, 21.0]);
        let mut pass = Pass::new(&mut strategy, &memory, Seeds::default(), 1);
        let output = table.forward(&mut pass, vec![2, 0, 2]).expect("rows");
        assert_eq!(output.data(), [20.0, 21.0, 0.0, 1.0, 20.0, 21.0]);
        let gradient = Tensor::from(&memory, 3, 2, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        table.backward(&mut pass, &gradient).expect("gradient");
        assert_eq!(strategy.gradient_of(table.weight()), [3.0, 4.0, 0.0, 0.0, 6.0, 8.0]);
    }
}
