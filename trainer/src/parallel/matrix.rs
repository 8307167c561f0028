//! Steps that need a whole matrix while each rank keeps the state of its share.

use super::shares::{From, Part, Stride};
use crate::error::{Error, Result};
use crate::flat::{Bucket, Numbers};
use crate::memory::{Class, Floats, Memory};
use crate::optim::{Step, Whole};
use crate::parameter::Inventory;
use std::ops::Range;
use unisono::Communicator;

/// Where the weights of a bucket of one matrix go.
pub(super) struct Directions<'a> {
    whole: &'a dyn Whole,
    rows: usize,
    columns: usize,
    /// Elements of the bucket.
    count: usize,
    factor: f32,
    group: Option<&'a Communicator>,
    /// Of the whole bucket, once gathered.
    taken: Option<Floats>,
}

impl<'a> Directions<'a> {
    /// For a bucket of one parameter that the optimiser takes as a whole; none for all others.
    pub(super) fn of(bucket: &Bucket, inventory: &Inventory, stride: &Stride<'a>) -> Result<Option<Self>> {
        let mut wholes = bucket.pieces.iter().filter_map(|piece| {
            let parameter = &inventory[piece.parameter];
            stride.optimiser.matrix(parameter).map(|whole| (parameter, whole))
        });
        let Some((parameter, whole)) = wholes.next() else { return Ok(None) };
        if bucket.pieces.len() > 1 || parameter.cut.is_some() {
            let why =
                if parameter.cut.is_some() { "is cut between tensor ranks" } else { "shares its bucket" };
            let text = format!("{} must be updated as a whole, and {why}", parameter.name);
            return Err(Error::Unavailable(format!("{text}: pack by rows, or use another optimiser")));
        }
        let columns = parameter.shape[1..].iter().product();
        let (rows, count, factor) = (parameter.shape[0], bucket.count, stride.step.factor);
        Ok(Some(Self { whole, rows, columns, count, factor, group: stride.group, taken: None }))
    }

    /// Finds the direction of this rank's elements, gathers that of the whole matrix, and makes of it the one that is taken.
    pub(super) fn gather(
        &mut self,
        part: &mut Part,
        gradients: &From<&Numbers>,
        memory: &Memory,
    ) -> Result<()> {
        let mut share = memory.zeros(Class::Buffers, part.range.len());
        let end = part.range.end.min(self.rows * self.columns);
        if part.range.start < end {
            let of = |start: usize| part.range.start - start..end - start;
            let (gradient, own) = (gradients.numbers.view(memory, of(gradients.start)), of(part.range.start));
            self.whole.gather(&gradient, self.factor, &mut part.moments[0][own.clone()], &mut share[own]);
        }
        let mut taken = match self.group {
            Some(group) => {
                let mut all = memory.take(Class::Buffers, self.count);
                group.all_gather(&share, &mut all)?;
                all
            }
            None => share,
        };
        self.whole.transform(&mut taken[..self.rows * self.columns], self.rows, self.columns);
        self.taken = Some(taken);
        Ok(())
    }

    /// Moves the elements `place` of the bucket.
    pub(super) fn apply(&self, weights: &mut [f32], place: Range<usize>, decays: bool, step: &Step) {
        let taken = self.taken.as_deref().expect("gathered");
        self.whole.apply(weights, &taken[place], decays, step);
    }
}
