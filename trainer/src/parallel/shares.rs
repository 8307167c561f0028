//! The elements whose optimiser state this rank keeps.

use super::group::Group;
use super::matrix::Directions;
use super::norm::Squares;
use super::offload::{Offload, Place};
use super::steps;
use crate::error::Result;
use crate::flat::{Bucket, BucketId, Dtype, Layout, Numbers, Ranks};
use crate::memory::{Class, Floats, Memory};
use crate::optim::{Optimiser, Step};
use crate::parallel::{Kept, Settings};
use crate::parameter::{Inventory, Parameter, ParameterId};
use std::ops::Range;
use std::sync::Arc;

/// Some elements of every bucket: all, this rank's share, or what it owns.
pub(super) struct Shares {
    pub(super) inventory: Arc<Inventory>,
    pub(super) layout: Arc<Layout>,
    pub(super) memory: Memory,
    /// Where state lies while it is not needed, if not in memory.
    offload: Option<Offload>,
    pub(super) parts: Vec<Part>,
}

/// Elements of one bucket.
pub(super) struct Part {
    pub(super) range: Range<usize>,
    /// Weights in full precision, where the bucket has them in 16 bits.
    pub(super) master: Option<Numbers>,
    /// In full precision too.
    pub(super) moments: Vec<Numbers>,
    /// Where the one and the others lie in a file.
    places: Vec<Place>,
}

/// A step, and what takes it.
pub(super) struct Stride<'a> {
    pub(super) optimiser: &'a dyn Optimiser,
    pub(super) step: &'a Step,
    /// The ranks that keep a share each; none where this one keeps all.
    pub(super) group: Option<&'a Group>,
    /// The ranks that have a part each of what is cut.
    pub(super) tensor: Option<&'a Ranks>,
}

/// Numbers of a bucket from its element `start` on.
pub(super) struct From<N> {
    pub(super) numbers: N,
    pub(super) start: usize,
}

/// Some of several numbers.
pub(super) struct At<N> {
    pub(super) numbers: N,
    pub(super) range: Range<usize>,
}

impl From<Numbers> {
    pub(super) fn view(&self) -> From<&Numbers> {
        From { numbers: &self.numbers, start: self.start }
    }
}

impl Shares {
    /// The elements that `range` says of every bucket; frozen ones have weights only.
    ///
    /// # Errors
    /// Of the file, where state is offloaded.
    pub(super) fn new(
        inventory: &Arc<Inventory>,
        layout: &Arc<Layout>,
        memory: &Memory,
        settings: &Settings,
        range: impl Fn(BucketId) -> Range<usize>,
    ) -> Result<Self> {
        let part = |bucket: BucketId| Part {
            range: range(bucket),
            master: None,
            moments: Vec::new(),
            places: Vec::new(),
        };
        let parts = layout.ids().map(part).collect();
        let offload = settings.offload.as_ref().map(|folder| Offload::new(folder, memory)).transpose()?;
        let (inventory, layout) = (Arc::clone(inventory), Arc::clone(layout));
        Ok(Self { inventory, layout, memory: memory.clone(), offload, parts })
    }

    /// The elements kept of a bucket.
    pub(super) fn range(&self, bucket: BucketId) -> Range<usize> {
        self.parts[bucket.0].range.clone()
    }

    /// Keeps full-precision copies of a bucket's initial weights, where it has them in 16 bits.
    ///
    /// # Errors
    /// Of the file, where state is offloaded.
    pub(super) fn initialise(&mut self, bucket: BucketId, seed: u64) -> Result<()> {
        let part = &mut self.parts[bucket.0];
        if has_master(&self.layout[bucket]) {
            let mut master = zeros(&self.memory, part.range.len())?;
            for (id, elements, place) in self.layout[bucket].within(part.range.clone()) {
                let place = place.start - part.range.start..place.end - part.range.start;
                let start = |values: &mut [f32]| self.inventory[id].initialise(seed, elements, values);
                master.lend(&self.memory, place, start)?;
            }
            part.master = Some(master);
        }
        self.stow(bucket)
    }

    /// Brings a bucket's state into memory, where it is not.
    fn fetch(&mut self, bucket: BucketId) -> Result<()> {
        let Some(offload) = &self.offload else { return Ok(()) };
        let (part, mut has_master) = (&mut self.parts[bucket.0], has_master(&self.layout[bucket]));
        for place in &part.places {
            let numbers = Numbers::F32(offload.read(place, part.range.len())?);
            match std::mem::take(&mut has_master) {
                true => part.master = Some(numbers),
                false => part.moments.push(numbers),
            }
        }
        Ok(())
    }

    /// Puts a bucket's state where it lies while it is not needed.
    fn stow(&mut self, bucket: BucketId) -> Result<()> {
        let Some(offload) = &mut self.offload else { return Ok(()) };
        let part = &mut self.parts[bucket.0];
        for (index, numbers) in part.master.take().into_iter().chain(part.moments.drain(..)).enumerate() {
            if index == part.places.len() {
                part.places.push(offload.room(numbers.len()));
            }
            offload.write(&part.places[index], host(numbers))?;
        }
        Ok(())
    }

    /// Adds the squares of a bucket's gradients in `range`, of parameters that count.
    pub(super) fn add_squares(
        &self,
        bucket: BucketId,
        range: Range<usize>,
        gradients: From<&Numbers>,
        counts: impl Fn(ParameterId) -> bool,
        sum: &mut Squares,
    ) -> Result<()> {
        let of = |place: Range<usize>| place.start - gradients.start..place.end - gradients.start;
        let pieces = || self.layout[bucket].within(range.clone());
        let counted = pieces().filter(|(id, ..)| counts(*id)).map(|(_, _, place)| of(place));
        match sum {
            Squares::Exact(sum) => {
                for place in counted {
                    sum.add_squares(&gradients.numbers.view(&self.memory, place)?);
                }
            }
            Squares::Rounded(parts) => {
                let there = gradients.numbers.on_device().expect("flat memory of a GPU");
                // Padding is 0.
                let all = pieces().all(|(id, ..)| counts(id));
                let ranges = if all { vec![of(range.clone())] } else { counted.collect() };
                parts.push(there.squares(&ranges)?);
            }
        }
        Ok(())
    }

    /// Takes a step with the elements kept of a bucket. Steps that need whole matrices gather them from `group`, of whose
    /// ranks each keeps its share; none where this rank keeps all.
    ///
    /// # Errors
    /// Of the collectives, and for a whole matrix that shares its bucket.
    pub(super) fn update(
        &mut self,
        bucket: BucketId,
        weights: From<&mut Numbers>,
        gradients: From<&Numbers>,
        stride: &Stride<'_>,
    ) -> Result<()> {
        if self.parts[bucket.0].range.is_empty() {
            return Ok(());
        }
        self.fetch(bucket)?;
        self.follow(bucket, weights, gradients, stride)?;
        self.stow(bucket)
    }

    /// The step itself, with the state in memory.
    fn follow(
        &mut self,
        bucket: BucketId,
        weights: From<&mut Numbers>,
        gradients: From<&Numbers>,
        stride: &Stride<'_>,
    ) -> Result<()> {
        let part = &mut self.parts[bucket.0];
        part.make_moments(&self.memory, moments_of(&self.layout[bucket], &self.inventory, stride.optimiser))?;
        let wide = steps::wide(gradients.numbers, &self.memory)?;
        let gradients = From { numbers: wide.as_ref().unwrap_or(gradients.numbers), start: gradients.start };
        let mut directions = Directions::of(&self.layout[bucket], &self.inventory, stride)?;
        if let Some(directions) = &mut directions {
            directions.gather(part, &gradients, &self.memory)?;
        }
        for (id, _, place) in self.layout[bucket].within(part.range.clone()) {
            let of = |start: usize| place.start - start..place.end - start;
            let (kept, decays) = (of(part.range.start), self.inventory[id].decays);
            let Part { master, moments, .. } = part;
            let full = match master {
                Some(master) => At { numbers: master, range: kept.clone() },
                None => At { numbers: &mut *weights.numbers, range: of(weights.start) },
            };
            match &directions {
                Some(directions) => {
                    directions.apply(&self.memory, full, place.clone(), decays, stride.step)?;
                }
                None => {
                    let gradient = At { numbers: gradients.numbers, range: of(gradients.start) };
                    let moments = At { numbers: &mut moments[..], range: kept.clone() };
                    steps::take(&self.memory, full, gradient, moments, decays, stride)?;
                }
            }
            if let Some(master) = master {
                weights.numbers.put(of(weights.start), master, kept)?;
            }
        }
        Ok(())
    }

    /// Shows what is kept of a bucket.
    pub(super) fn visit(
        &mut self,
        bucket: BucketId,
        weights: From<&mut Numbers>,
        visit: &mut dyn FnMut(Kept<'_>) -> Result<()>,
    ) -> Result<()> {
        self.fetch(bucket)?;
        self.show(bucket, weights, visit)?;
        self.stow(bucket)
    }

    fn show(
        &mut self,
        bucket: BucketId,
        weights: From<&mut Numbers>,
        visit: &mut dyn FnMut(Kept<'_>) -> Result<()>,
    ) -> Result<()> {
        let part = &mut self.parts[bucket.0];
        for (parameter, range, place) in self.layout[bucket].within(part.range.clone()) {
            let of = |start: usize| place.start - start..place.end - start;
            let kept = of(part.range.start);
            let Part { master, moments, .. } = part;
            let show = |weights: &mut [f32]| {
                lend_all(moments, &self.memory, kept.clone(), weights, |weights, moments| {
                    visit(Kept { parameter, range: range.clone(), weights, moments })
                })
            };
            match master {
                Some(master) => {
                    master.lend(&self.memory, kept.clone(), show)??;
                    weights.numbers.put(of(weights.start), master, kept)?;
                }
                None => weights.numbers.lend(&self.memory, of(weights.start), show)??,
            }
        }
        Ok(())
    }

    /// Makes room for moments, for when they come from a checkpoint.
    pub(super) fn make_moments(&mut self, count: &dyn Fn(&Parameter) -> usize) -> Result<()> {
        let layout = Arc::clone(&self.layout);
        for id in layout.ids().filter(|&id| layout[id].trainable) {
            self.fetch(id)?;
            let counts = layout[id].pieces.iter().map(|piece| count(&self.inventory[piece.parameter]));
            self.parts[id.0].make_moments(&self.memory, counts.max().unwrap_or(0))?;
            self.stow(id)?;
        }
        Ok(())
    }
}

/// Whether the optimiser keeps full-precision copies of a bucket's weights.
fn has_master(bucket: &Bucket) -> bool {
    bucket.dtype == Dtype::Bf16 && bucket.trainable
}

/// Moments of the elements of a bucket.
fn moments_of(bucket: &Bucket, inventory: &Inventory, optimiser: &dyn Optimiser) -> usize {
    let counts = bucket.pieces.iter().map(|piece| optimiser.moments(&inventory[piece.parameter]));
    counts.max().unwrap_or(0)
}

impl Part {
    fn make_moments(&mut self, memory: &Memory, count: usize) -> Result<()> {
        while self.moments.len() < count {
            self.moments.push(zeros(memory, self.range.len())?);
        }
        self.moments.truncate(count);
        Ok(())
    }
}

fn zeros(memory: &Memory, count: usize) -> Result<Numbers> {
    Ok(Numbers::zeros(memory, Class::Optimiser, Dtype::F32, count)?)
}

/// Weights or state in memory of the host.
pub(super) fn floats(numbers: &mut Numbers) -> &mut [f32] {
    numbers.floats_mut().expect("of 32 bits, where flat memory lies")
}

/// State that is written to a file.
fn host(numbers: Numbers) -> Floats {
    match numbers {
        Numbers::F32(floats) => floats,
        other => unreachable!("{other:?} are not offloaded"),
    }
}

/// Lends the numbers in `range` of all of them as 32-bit floats of the host that may be changed, beside weights.
fn lend_all(
    all: &mut [Numbers],
    memory: &Memory,
    range: Range<usize>,
    weights: &mut [f32],
    body: impl for<'a> FnOnce(&'a mut [f32], &'a mut [&'a mut [f32]]) -> Result<()>,
) -> Result<()> {
    if memory.lane().is_none() {
        let mut slices: Vec<_> = all.iter_mut().map(|numbers| &mut floats(numbers)[range.clone()]).collect();
        return body(weights, &mut slices);
    }
    let mut copies = Vec::new();
    for numbers in all.iter() {
        let mut copy = memory.take::<f32>(Class::Buffers, range.len());
        numbers.widen(range.clone(), &mut copy)?;
        copies.push(copy);
    }
    body(weights, &mut copies.iter_mut().map(|copy| &mut copy[..]).collect::<Vec<_>>())?;
    for (numbers, copy) in all.iter_mut().zip(copies) {
        numbers.narrow(range.clone(), &copy)?;
        copy.free();
    }
    Ok(())
}
