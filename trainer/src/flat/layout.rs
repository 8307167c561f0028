//! Where every parameter lies.
//!
//! Buckets are cut in equal shares, one for each rank. Every parameter starts at a multiple of [`GRAIN`] elements, and every
//! share is a multiple of it: a block of so many elements never belongs to two parameters or two ranks.
//!
//! Sources: reverse order and caps as in Li et al., "PyTorch Distributed", VLDB 13(12), 2020; padding as in Fast-LLM.

use crate::flat::Dtype;
use crate::parameter::{Inventory, Parameter, ParameterId, UnitId};
use std::ops::Range;

/// Elements that stay together: parameters and shares are aligned to so many.
pub const ALIGNMENT: usize = 32;

/// A bucket's number, in the order in which backward completes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BucketId(pub usize);

/// One parameter in its bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketEntry {
    /// Which.
    pub parameter: ParameterId,
    /// Its elements in the bucket.
    pub range: Range<usize>,
}

/// Contiguous memory of some parameters, all of one type, and all trainable or all frozen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// What lies in it, in order.
    pub entries: Vec<BucketEntry>,
    /// Elements in all, padding included: a multiple of the ranks times [`GRAIN`].
    pub count: usize,
    /// Type of the weights.
    pub dtype: Dtype,
    /// Type of the gradients.
    pub grad_dtype: Dtype,
    /// Whether its parameters have gradients.
    pub trainable: bool,
}

impl Bucket {
    /// The pieces that lie in `range`, whole or in part: (parameter, elements of the parameter, elements of the bucket).
    pub fn entries_within(
        &self,
        range: Range<usize>,
    ) -> impl Iterator<Item = (ParameterId, Range<usize>, Range<usize>)> + '_ {
        self.entries.iter().filter_map(move |piece| {
            let (start, end) = (range.start.max(piece.range.start), range.end.min(piece.range.end));
            let from = |at: usize| at - piece.range.start;
            (start < end).then(|| (piece.parameter, from(start)..from(end), start..end))
        })
    }
}

/// How parameters are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// From the last parameter to the first, a new bucket when so many bytes are reached; 0: one for each parameter.
    MaxBytes(usize),
    /// The parameters of a unit together.
    PerUnit,
}

/// Which parameters get a bucket of their own, in which every share consists of whole rows.
pub type ShardByRows<'a> = &'a dyn Fn(&Parameter) -> bool;

/// The buckets of a model, and where in them each parameter lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// By [`BucketId`].
    pub buckets: Vec<Bucket>,
    locations: Vec<(BucketId, usize)>,
    ranks: usize,
}

impl Layout {
    /// Packs the parameters of `inventory` for `ranks` ranks.
    pub fn new(inventory: &Inventory, ranks: usize, packing: Packing) -> Self {
        Self::with_rows(inventory, ranks, packing, &|_| false)
    }

    /// As [`Layout::new`]; matrices that are meant `by_rows` get a bucket of their own.
    pub fn with_rows(
        inventory: &Inventory,
        ranks: usize,
        packing: Packing,
        by_rows: ShardByRows<'_>,
    ) -> Self {
        let places = vec![(BucketId(0), 0); inventory.parameters.len()];
        let mut layout = Self { buckets: Vec::new(), locations: places, ranks };
        let mut open: Option<UnitId> = None;
        for id in (0..inventory.parameters.len()).rev().map(ParameterId) {
            let unit = inventory.unit_of(id);
            let fits = layout.buckets.last().is_some_and(|last| match packing {
                Packing::MaxBytes(cap) => {
                    open.is_some() && last.count * last.dtype.size() + bytes(&inventory[id]) <= cap
                }
                Packing::PerUnit => open == Some(unit),
            });
            let alone = by_rows(&inventory[id]);
            layout.add(id, &inventory[id], fits && !alone);
            if alone {
                layout.buckets.last_mut().expect("just added").count = padded_elements(&inventory[id], ranks);
            }
            open = Some(unit).filter(|_| !alone);
        }
        for bucket in &mut layout.buckets {
            bucket.count = bucket.count.next_multiple_of(ranks * ALIGNMENT);
        }
        layout
    }

    /// The same with gradients in 32 bits, whatever the weights have.
    pub fn with_fp32_grads(mut self) -> Self {
        self.buckets.iter_mut().for_each(|bucket| bucket.grad_dtype = Dtype::F32);
        self
    }

    fn add(&mut self, id: ParameterId, parameter: &Parameter, fits: bool) {
        let (dtype, trainable) = (parameter.dtype, parameter.trainable);
        let alike = |last: &&mut Bucket| fits && last.dtype == dtype && last.trainable == trainable;
        if self.buckets.last_mut().filter(alike).is_none() {
            self.buckets.push(Bucket { entries: Vec::new(), count: 0, dtype, grad_dtype: dtype, trainable });
        }
        let at = BucketId(self.buckets.len() - 1);
        let bucket = &mut self.buckets[at.0];
        let range = bucket.count..bucket.count + parameter.count();
        self.locations[id.0] = (at, bucket.entries.len());
        bucket.count = range.end.next_multiple_of(ALIGNMENT);
        bucket.entries.push(BucketEntry { parameter: id, range });
    }

    /// The bucket of a parameter, and its elements there.
    pub fn location(&self, id: ParameterId) -> (BucketId, Range<usize>) {
        let (bucket, piece) = self.locations[id.0];
        (bucket, self[bucket].entries[piece].range.clone())
    }

    /// The share of `rank` in a bucket.
    pub fn shard_range(&self, bucket: BucketId, rank: usize) -> Range<usize> {
        let share = self[bucket].count / self.ranks;
        rank * share..(rank + 1) * share
    }

    /// The buckets that have parameters of `unit`, or that it borrows, in the order of forward.
    pub fn buckets_of(&self, inventory: &Inventory, unit: UnitId) -> Vec<BucketId> {
        let units = inventory[unit].shared_units.iter().copied().chain([unit]);
        let parameters = units.flat_map(|unit| inventory[unit].parameters.clone());
        let mut buckets: Vec<_> = parameters.map(|index| self.locations[index].0).collect();
        buckets.sort_unstable_by(|one, other| other.cmp(one));
        buckets.dedup();
        buckets
    }

    /// All buckets' numbers, in the order in which backward completes them.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = BucketId> + use<> {
        (0..self.buckets.len()).map(BucketId)
    }

    /// Elements in all, padding included.
    pub fn count(&self) -> usize {
        self.buckets.iter().map(|bucket| bucket.count).sum()
    }
}

impl std::ops::Index<BucketId> for Layout {
    type Output = Bucket;

    fn index(&self, id: BucketId) -> &Bucket {
        &self.buckets[id.0]
    }
}

/// Elements of a matrix whose rows are dealt to `ranks` ranks, each as many, so that shares are whole blocks.
fn padded_elements(parameter: &Parameter, ranks: usize) -> usize {
    let columns: usize = parameter.shape[1..].iter().product();
    let rows =
        (1..=ALIGNMENT).find(|rows| (rows * columns).is_multiple_of(ALIGNMENT)).expect("GRAIN rows are");
    parameter.shape[0].div_ceil(ranks).next_multiple_of(rows) * columns * ranks
}

fn bytes(parameter: &Parameter) -> usize {
    parameter.count() * parameter.dtype.size()
}
