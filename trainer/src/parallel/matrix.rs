//! Steps that need a whole matrix while each rank keeps the state of its share, of a part of it perhaps.

use super::group::Group;
use super::shares::{At, From, Part, Stride};
use crate::error::{Error, Result};
use crate::flat::{Bucket, Dtype, Numbers, Ranks};
use crate::memory::{Class, Memory};
use crate::optim::{Step, Whole};
use crate::parameter::{Inventory, Parameter};
use std::ops::Range;

/// Where the weights of a bucket of one matrix go.
pub(super) struct Directions<'a> {
    whole: &'a dyn Whole,
    parameter: &'a Parameter,
    /// Elements of the bucket.
    count: usize,
    factor: f32,
    /// Ranks that have a share each.
    shares: Option<&'a Group>,
    /// Ranks that have a part of the matrix each.
    parts: Option<&'a Ranks>,
    /// Of the whole bucket, once gathered.
    taken: Option<Numbers>,
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
        let mut share = Numbers::zeros(memory, Class::Buffers, Dtype::F32, part.range.len())?;
        let end = part.range.end.min(self.parameter.count());
        if part.range.start < end {
            let of = |start: usize| part.range.start - start..end - start;
            let (gradient, own) =
                (At { numbers: gradients.numbers, range: of(gradients.start) }, of(part.range.start));
            let moment = At { numbers: &mut part.moments[0], range: own.clone() };
            self.head(memory, gradient, moment, At { numbers: &mut share, range: own })?;
        }
        let mut taken = match self.shares {
            Some(group) => {
                let mut all = Numbers::new(memory, Class::Buffers, Dtype::F32, self.count)?;
                all.all_gather(&share, group.peers())?;
                all
            }
            None => share,
        };
        self.transform(memory, &mut taken)?;
        self.taken = Some(taken);
        Ok(())
    }

    /// Takes the gradient of some elements into their moment, and puts into `direction` where they would go.
    fn head(
        &self,
        memory: &Memory,
        gradient: At<&Numbers>,
        moment: At<&mut Numbers>,
        direction: At<&mut Numbers>,
    ) -> Result<()> {
        let Some(lane) = memory.lane() else {
            let gradient = gradient.numbers.view(memory, gradient.range)?;
            self.whole.gather(&gradient, self.factor, moment.floats(), direction.floats());
            return Ok(());
        };
        let (moment, direction) = (moment.floats_on(), direction.floats_on());
        Ok(self.whole.gather_on(lane, gradient.read_on(), self.factor, moment, direction)?)
    }

    /// Makes of the direction of this rank's part the one that is taken.
    fn transform(&self, memory: &Memory, taken: &mut Numbers) -> Result<()> {
        match self.parts {
            Some(parts) => self.transform_parts(memory, taken, parts),
            None => self.transform_whole(memory, taken),
        }
    }

    /// Makes of the direction of the whole matrix the one that is taken.
    fn transform_whole(&self, memory: &Memory, taken: &mut Numbers) -> Result<()> {
        let [rows, columns] = self.extents();
        let whole = At { numbers: taken, range: 0..rows * columns };
        match memory.lane() {
            Some(lane) => self.whole.transform_on(lane, whole.floats_on(), rows, columns)?,
            None => self.whole.transform(whole.floats(), rows, columns),
        }
        Ok(())
    }

    /// Rows and columns of the whole matrix.
    fn extents(&self) -> [usize; 2] {
        let shape = self.parameter.whole_shape();
        [shape[0], shape[1..].iter().product()]
    }

    /// Puts the parts of all ranks together, makes of the whole the direction that is taken, and leaves this rank its part.
    fn transform_parts(&self, memory: &Memory, taken: &mut Numbers, parts: &Ranks) -> Result<()> {
        let (count, [rows, columns]) = (self.parameter.count(), self.extents());
        let room = |count| Numbers::zeros(memory, Class::Buffers, Dtype::F32, count);
        let (mut own, mut all, mut whole) =
            (room(count)?, room(count * parts.ranks())?, room(rows * columns)?);
        own.put(0..count, taken, 0..count)?;
        all.all_gather(&own, parts.peers())?;
        for part in 0..parts.ranks() {
            for block in blocks(&self.parameter.of_part(part), columns) {
                block.lay(
                    memory,
                    At { numbers: &all, range: part * count..(part + 1) * count },
                    &mut whole,
                )?;
            }
        }
        self.transform_whole(memory, &mut whole)?;
        own.clear()?;
        for block in blocks(self.parameter, columns) {
            block.turned().lay(memory, At { numbers: &whole, range: 0..rows * columns }, &mut own)?;
        }
        Ok(taken.put(0..count, &own, 0..count)?)
    }

    /// Moves the elements `place` of the bucket.
    pub(super) fn apply(
        &self,
        memory: &Memory,
        weights: At<&mut Numbers>,
        place: Range<usize>,
        decays: bool,
        step: &Step,
    ) -> Result<()> {
        let taken = At { numbers: self.taken.as_ref().expect("gathered"), range: place };
        let Some(lane) = memory.lane() else {
            let taken = taken.numbers.view(memory, taken.range)?;
            self.whole.apply(weights.floats(), &taken, decays, step);
            return Ok(());
        };
        Ok(self.whole.apply_on(lane, weights.floats_on(), taken.read_on(), decays, step)?)
    }
}

/// Rows of a matrix in a part of it and in the whole: where they begin, and how far one is from the next.
struct Block {
    from: [usize; 2],
    to: [usize; 2],
    extents: [usize; 2],
}

/// What a part has of a matrix of so many columns, but for padding.
fn blocks(part: &Parameter, columns: usize) -> impl Iterator<Item = Block> + use<> {
    let cut = part.cut.clone().expect("a part is cut");
    let (runs, local, rows): (Vec<_>, _, _) = (cut.runs().collect(), cut.local(), part.whole_shape()[0]);
    let block = move |(here, there, count): (usize, usize, usize)| match cut.dimension {
        0 => Block {
            from: [here * columns, columns],
            to: [there * columns, columns],
            extents: [count, columns],
        },
        _ => Block { from: [here, local], to: [there, columns], extents: [rows, count] },
    };
    runs.into_iter().filter(|(.., count)| *count > 0).map(block)
}

impl Block {
    /// The way back.
    fn turned(self) -> Self {
        Self { from: self.to, to: self.from, ..self }
    }

    /// Puts what `from` has of it where it goes.
    fn lay(&self, memory: &Memory, from: At<&Numbers>, into: &mut Numbers) -> Result<()> {
        let Block { from: [start, stride], to: [place, step], extents: [rows, columns] } = *self;
        let first = from.range.start + start;
        if let Some(lane) = memory.lane() {
            let mut dense = lane.stream().room(rows * columns)?;
            let from = At { numbers: from.numbers, range: first..from.range.end }.read_on();
            lane.pack(dense.view_mut(..), from, &self.extents, &[stride, 1])?;
            let end = into.len();
            let into = At { numbers: into, range: place..end }.floats_on();
            return Ok(lane.unpack(into, dense.view(..), &self.extents, &[step, 1])?);
        }
        for row in 0..rows {
            let (from_row, to_row) = (first + row * stride, place + row * step);
            into.put(to_row..to_row + columns, from.numbers, from_row..from_row + columns)?;
        }
        Ok(())
    }
}
