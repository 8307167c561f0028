//! Layout of parameters in buckets.
//!
//! A bucket consists of equal shards, one per rank. Every parameter starts at a multiple of
//! [`ALIGNMENT`] elements, and so does every shard. A block of this size never belongs to two
//! parameters or two ranks.
//!
//! Sources: reverse order and size limits follow Li et al., "PyTorch Distributed", VLDB 13(12),
//! 2020. Padding follows Fast-LLM.

use std::ops::Range;
use unisono_nn::parameter::{Dtype, Inventory, Parameter, ParameterId, UnitId};

/// Alignment of parameters and shards, in elements.
pub const ALIGNMENT: usize = 32;

/// Number of a bucket, in the order in which backward completes buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BucketId(pub usize);

/// Parameter in a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketEntry {
    /// The parameter.
    pub parameter: ParameterId,
    /// Range of its elements in the bucket.
    pub range: Range<usize>,
}

/// Contiguous memory of parameters of one type, all trainable or all frozen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Parameters in order.
    pub entries: Vec<BucketEntry>,
    /// Number of elements including padding: a multiple of the ranks times [`ALIGNMENT`].
    pub count: usize,
    /// Type of the weights.
    pub dtype: Dtype,
    /// Type of the gradients.
    pub grad_dtype: Dtype,
    /// True if its parameters have gradients.
    pub trainable: bool,
}

impl Bucket {
    /// Returns the entries that intersect `range`: (parameter, elements of the parameter, elements
    /// of the bucket).
    pub fn entries_within(
        &self,
        range: Range<usize>,
    ) -> impl Iterator<Item = (ParameterId, Range<usize>, Range<usize>)> + '_ {
        self.entries.iter().filter_map(move |piece| {
            let (start, end) = (range.start.max(piece.range.start), range.end.min(piece.range.end));
            let offset = |element: usize| element - piece.range.start;
            (start < end).then(|| (piece.parameter, offset(start)..offset(end), start..end))
        })
    }
}

/// Rule for packing parameters into buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// Packs from the last parameter to the first, up to this number of bytes per bucket. 0 gives
    /// each parameter a bucket.
    MaxBytes(usize),
    /// Packs the parameters of a unit together.
    PerUnit,
}

/// Selects parameters with a bucket of their own, whose shards consist of whole rows.
pub type ShardByRows<'a> = &'a dyn Fn(&Parameter) -> bool;

/// Buckets of a model, and the location of each parameter in them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Buckets by [`BucketId`].
    pub buckets: Vec<Bucket>,
    locations: Vec<(BucketId, usize)>,
    ranks: usize,
}

impl Layout {
    /// Packs the parameters of `inventory` for `ranks` ranks.
    pub fn new(inventory: &Inventory, ranks: usize, packing: Packing) -> Self {
        Self::with_rows(inventory, ranks, packing, &|_| false)
    }

    /// Packs as [`Layout::new`] does. Parameters that other pipeline stages have are left out, and
    /// one that is tied to another stage gets a bucket of its own. So do matrices that `by_rows`
    /// selects.
    pub fn with_rows(
        inventory: &Inventory,
        ranks: usize,
        packing: Packing,
        by_rows: ShardByRows<'_>,
    ) -> Self {
        let places = vec![(BucketId(0), 0); inventory.parameters.len()];
        let mut layout = Self { buckets: Vec::new(), locations: places, ranks };
        let mut open: Option<UnitId> = None;
        let here = |id: &ParameterId| inventory[*id].residency.is_here();
        // Backward completes gradients from the last parameter to the first. Packed in this order,
        // bucket 0 is complete first and is reduced while backward goes on.
        for id in (0..inventory.parameters.len()).rev().map(ParameterId).filter(here) {
            let unit = inventory.unit_of(id);
            let fits = layout.buckets.last().is_some_and(|last| match packing {
                Packing::MaxBytes(cap) => {
                    open.is_some() && last.count * last.dtype.size() + bytes(&inventory[id]) <= cap
                }
                Packing::PerUnit => open == Some(unit),
            });
            let (by_rows, tied) = (by_rows(&inventory[id]), inventory[id].residency.is_tied());
            // The gradient of a tied parameter waits for another stage, and nothing else with it.
            let alone = by_rows || tied;
            layout.add(id, &inventory[id], fits && !alone);
            // Without this size, the equal shards of the padded bucket would cut rows.
            if by_rows {
                layout.buckets.last_mut().expect("just added").count = padded_elements(&inventory[id], ranks);
            }
            open = Some(unit).filter(|_| !alone);
        }
        for bucket in &mut layout.buckets {
            bucket.count = bucket.count.next_multiple_of(ranks * ALIGNMENT);
        }
        layout
    }

    /// Sets the gradient type to 32 bits, whatever the type of the weights.
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
        let bucket_id = BucketId(self.buckets.len() - 1);
        let bucket = &mut self.buckets[bucket_id.0];
        let range = bucket.count..bucket.count + parameter.count();
        self.locations[id.0] = (bucket_id, bucket.entries.len());
        bucket.count = range.end.next_multiple_of(ALIGNMENT);
        bucket.entries.push(BucketEntry { parameter: id, range });
    }

    /// Returns the bucket of a parameter, and the range of its elements there.
    pub fn location(&self, id: ParameterId) -> (BucketId, Range<usize>) {
        let (bucket, piece) = self.locations[id.0];
        (bucket, self[bucket].entries[piece].range.clone())
    }

    /// Returns the range of `rank`'s shard in a bucket.
    pub fn shard_range(&self, bucket: BucketId, rank: usize) -> Range<usize> {
        let share = self[bucket].count / self.ranks;
        rank * share..(rank + 1) * share
    }

    /// Returns the buckets with parameters that `unit` uses, in forward order. Leaves out
    /// parameters that are elsewhere.
    pub fn buckets_of(&self, inventory: &Inventory, unit: UnitId) -> Vec<BucketId> {
        let mut buckets: Vec<_> = inventory.present_of(unit).map(|id| self.locations[id.0].0).collect();
        buckets.sort_unstable_by(|left, right| right.cmp(left));
        buckets.dedup();
        buckets
    }

    /// Returns the numbers of all buckets, in the order in which backward completes them.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = BucketId> + use<> {
        (0..self.buckets.len()).map(BucketId)
    }

    /// Returns the number of elements of all buckets, including padding.
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

/// Returns the padded size of a matrix whose rows are divided equally over `ranks` ranks, in whole
/// blocks.
fn padded_elements(parameter: &Parameter, ranks: usize) -> usize {
    let columns: usize = parameter.shape[1..].iter().product();
    let rows =
        (1..=ALIGNMENT).find(|rows| (rows * columns).is_multiple_of(ALIGNMENT)).expect("GRAIN rows are");
    parameter.shape[0].div_ceil(ranks).next_multiple_of(rows) * columns * ranks
}

fn bytes(parameter: &Parameter) -> usize {
    parameter.count() * parameter.dtype.size()
}
