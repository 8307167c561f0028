//! Steps that need a whole matrix while each rank keeps the state of its share, of a part of it perhaps.

use super::shares::{From, Part, Stride};
use crate::error::{Error, Result};
use crate::flat::{Bucket, Numbers};
use crate::memory::{Class, Floats, Memory};
use crate::optim::{Step, Whole};
use crate::parameter::{Inventory, Parameter};
use std::ops::Range;
use unisono::Communicator;

/// Where the weights of a bucket of one matrix go.
pub(super) struct Directions<'a> {
    whole: &'a dyn Whole,
    parameter: &'a Parameter,
    /// Elements of the bucket.
    count: usize,
    factor: f32,
    /// Ranks that have a share each.
    shares: Option<&'a Communicator>,
    /// Ranks that have a part of the matrix each.
    parts: Option<&'a Communicator>,
    /// Of the whole bucket, once gathered.
    taken: Option<Floats>,
}

impl<'a> Directions<'a> {
    /// For a bucket of one parameter that the optimiser takes as a whole; none for all others.
    pub(super) fn of(bucket: &Bucket, inventory: &'a Inventory, stride: &Stride<'a>) -> Result<Option<Self>> {
        let mut wholes = bucket.pieces.iter().filter_map(|piece| {
            let parameter = &inventory[piece.parameter];
            stride.optimiser.matrix(parameter).map(|whole| (parameter, whole))
        });
        let Some((parameter, whole)) = wholes.next() else { return Ok(None) };
        if bucket.pieces.len() > 1 {
            let text = format!("{} must be updated as a whole, and shares its bucket", parameter.name);
            return Err(Error::Unavailable(format!("{text}: pack by rows, or use another optimiser")));
        }
        let (count, factor) = (bucket.count, stride.step.factor);
        let parts = stride.tensor.filter(|_| parameter.cut.is_some());
        Ok(Some(Self { whole, parameter, count, factor, shares: stride.group, parts, taken: None }))
    }

    /// Finds the direction of this rank's elements, gathers that of the whole matrix, and makes of it the one that is taken.
    pub(super) fn gather(
        &mut self,
        part: &mut Part,
        gradients: &From<&Numbers>,
        memory: &Memory,
    ) -> Result<()> {
        let mut share = memory.zeros(Class::Buffers, part.range.len());
        let end = part.range.end.min(self.parameter.count());
        if part.range.start < end {
            let of = |start: usize| part.range.start - start..end - start;
            let (gradient, own) = (gradients.numbers.view(memory, of(gradients.start)), of(part.range.start));
            self.whole.gather(&gradient, self.factor, &mut part.moments[0][own.clone()], &mut share[own]);
        }
        let mut taken = match self.shares {
            Some(group) => {
                let mut all = memory.take(Class::Buffers, self.count);
                group.all_gather(&share, &mut all)?;
                all
            }
            None => share,
        };
        let own = &mut taken[..self.parameter.count()];
        match self.parts {
            Some(parts) => self.transform_parts(own, parts, memory)?,
            None => self.transform(own),
        }
        self.taken = Some(taken);
        Ok(())
    }

    fn transform(&self, direction: &mut [f32]) {
        let shape = self.parameter.whole_shape();
        self.whole.transform(direction, shape[0], shape[1..].iter().product());
    }

    /// Puts the parts of all ranks together, makes of the whole the direction that is taken, and leaves this rank its part.
    fn transform_parts(&self, own: &mut [f32], parts: &Communicator, memory: &Memory) -> Result<()> {
        let mut all = memory.take(Class::Buffers, own.len() * parts.ranks());
        parts.all_gather(own, &mut all)?;
        let mut whole = memory.take(Class::Buffers, self.parameter.whole_shape().iter().product());
        for (part, values) in all.chunks_exact(own.len()).enumerate() {
            let parameter = self.parameter.of_part(part);
            for (index, value) in values.iter().enumerate() {
                parameter.in_whole(index).into_iter().for_each(|place| whole[place] = *value);
            }
        }
        self.transform(&mut whole);
        for (index, value) in own.iter_mut().enumerate() {
            *value = self.parameter.in_whole(index).map_or(0.0, |place| whole[place]);
        }
        Ok(())
    }

    /// Moves the elements `place` of the bucket.
    pub(super) fn apply(&self, weights: &mut [f32], place: Range<usize>, decays: bool, step: &Step) {
        let taken = self.taken.as_deref().expect("gathered");
        self.whole.apply(weights, &taken[place], decays, step);
    }
}
