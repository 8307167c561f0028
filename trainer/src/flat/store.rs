//! Whole buckets of weights and gradients, as modules see them.

use crate::flat::{BucketId, Dtype, Layout, Numbers};
use crate::memory::{Class, Floats, Memory};
use crate::parameter::{Inventory, ParameterId, UnitId};
use std::ops::Range;
use std::sync::Arc;

/// The buckets that are whole at this rank now. Modules get views of them, not copies; only 16-bit numbers are
/// widened for as long as a module works with them.
pub struct Store {
    /// What there is.
    pub inventory: Arc<Inventory>,
    /// Where it lies.
    pub layout: Arc<Layout>,
    /// Where storage comes from.
    pub memory: Memory,
    weights: Vec<Option<Numbers>>,
    gradients: Vec<Option<Numbers>>,
    /// Weights of 16-bit parameters, widened, while their unit is open.
    open: Vec<Option<Floats>>,
    /// Gradients of 16-bit parameters while modules add to them.
    sums: Vec<Option<Floats>>,
}

impl Store {
    /// With nothing in it yet.
    pub fn new(inventory: Arc<Inventory>, layout: Arc<Layout>, memory: &Memory) -> Self {
        let buckets = || layout.buckets.iter().map(|_| None).collect();
        let parameters = || inventory.parameters.iter().map(|_| None).collect();
        Self {
            weights: buckets(),
            gradients: buckets(),
            open: parameters(),
            sums: parameters(),
            memory: memory.clone(),
            inventory,
            layout,
        }
    }

    /// Initial values of the elements `range` of a bucket: the same whoever computes them.
    pub fn initial(&self, bucket: BucketId, range: Range<usize>, seed: u64) -> Numbers {
        let dtype = self.layout[bucket].dtype;
        let mut numbers = Numbers::zeros(&self.memory, Class::Weights, dtype, range.len());
        for (id, of_parameter, of_bucket) in self.layout[bucket].within(range.clone()) {
            let mut values = self.memory.take(Class::Buffers, of_parameter.len());
            self.inventory[id].initialise(seed, of_parameter, &mut values);
            numbers.narrow(of_bucket.start - range.start..of_bucket.end - range.start, &values);
        }
        numbers
    }

    /// Puts a bucket's weights in.
    pub fn put_weights(&mut self, bucket: BucketId, weights: Numbers) {
        self.weights[bucket.0] = Some(weights);
    }

    /// Takes a bucket's weights out, if they are there.
    pub fn take_weights(&mut self, bucket: BucketId) -> Option<Numbers> {
        self.weights[bucket.0].take()
    }

    /// A bucket's weights, if they are there.
    pub fn bucket(&self, bucket: BucketId) -> Option<&Numbers> {
        self.weights[bucket.0].as_ref()
    }

    /// A bucket's weights, to change.
    ///
    /// # Panics
    /// If they are not there.
    pub fn weights_mut(&mut self, bucket: BucketId) -> &mut Numbers {
        self.weights[bucket.0].as_mut().expect("the weights are whole")
    }

    /// Puts a bucket's gradients in.
    pub fn put_gradients(&mut self, bucket: BucketId, gradients: Numbers) {
        self.gradients[bucket.0] = Some(gradients);
    }

    /// Takes a bucket's gradients out; zeros where nothing came.
    pub fn take_gradients(&mut self, bucket: BucketId) -> Numbers {
        self.make_gradients(bucket);
        self.gradients[bucket.0].take().expect("just made")
    }

    fn make_gradients(&mut self, bucket: BucketId) {
        if self.gradients[bucket.0].is_none() {
            self.gradients[bucket.0] = Some(self.no_gradients(bucket, self.layout[bucket].count));
        }
    }

    /// Gradients of `count` elements of a bucket to which nothing came.
    pub fn no_gradients(&self, bucket: BucketId, count: usize) -> Numbers {
        Numbers::zeros(&self.memory, Class::Gradients, self.layout[bucket].gradients, count)
    }

    /// Widens what a unit's modules cannot use as it is.
    pub fn open(&mut self, unit: UnitId) {
        for id in self.parameters_of(unit) {
            let (bucket, range) = self.layout.place(id);
            let Some(numbers @ Numbers::Bf16(_)) = &self.weights[bucket.0] else { continue };
            let mut wide = self.memory.take(Class::Buffers, range.len());
            numbers.widen(range, &mut wide);
            self.open[id.0] = Some(wide);
        }
    }

    /// Ends what [`Store::open`] began.
    pub fn close(&mut self, unit: UnitId) {
        for id in self.parameters_of(unit) {
            self.open[id.0] = None;
        }
    }

    fn parameters_of(&self, unit: UnitId) -> Vec<ParameterId> {
        let unit = &self.inventory[unit];
        let borrowed = unit.borrows.iter().flat_map(|&other| self.inventory[other].parameters.clone());
        unit.parameters.clone().chain(borrowed).map(ParameterId).collect()
    }

    /// A parameter's weights.
    ///
    /// # Panics
    /// If its bucket is not there: a unit is used that was not asked for.
    pub fn weights(&self, id: ParameterId) -> &[f32] {
        let (bucket, range) = self.layout.place(id);
        let whole = self.weights[bucket.0].as_ref().and_then(Numbers::floats);
        let narrow = || self.open[id.0].as_deref();
        whole.map(|whole| &whole[range]).or_else(narrow).unwrap_or_else(|| self.absent(id))
    }

    fn absent(&self, id: ParameterId) -> ! {
        panic!("{} is used outside of its unit", self.inventory[id].name)
    }

    /// A parameter's weights and its gradient to add to; none if it is frozen.
    pub fn gradient(&mut self, id: ParameterId) -> Option<(&[f32], &mut [f32])> {
        if !self.inventory[id].trainable {
            return None;
        }
        let (bucket, range) = self.layout.place(id);
        self.make_gradients(bucket);
        self.make_sum(id, bucket, range.clone());
        let whole = self.weights[bucket.0].as_ref().and_then(Numbers::floats);
        let weights = whole.map(|whole| &whole[range.clone()]).or(self.open[id.0].as_deref());
        let sum = match self.gradients[bucket.0].as_mut().and_then(Numbers::floats_mut) {
            Some(gradients) => &mut gradients[range],
            None => self.sums[id.0].as_deref_mut().expect("just made"),
        };
        Some((weights.unwrap_or_default(), sum))
    }

    /// Room to add in 32 bits to a gradient that is kept in 16.
    fn make_sum(&mut self, id: ParameterId, bucket: BucketId, range: Range<usize>) {
        let gradients = self.gradients[bucket.0].as_ref().expect("just made");
        if gradients.dtype() == Dtype::Bf16 && self.sums[id.0].is_none() {
            let mut sum = self.memory.take(Class::Buffers, range.len());
            gradients.widen(range, &mut sum);
            self.sums[id.0] = Some(sum);
        }
    }

    /// All that this backward pass adds to a parameter's gradient is there.
    pub fn settle(&mut self, id: ParameterId) {
        let (bucket, range) = self.layout.place(id);
        if let (Some(sum), Some(gradients)) = (self.sums[id.0].take(), &mut self.gradients[bucket.0]) {
            gradients.narrow(range, &sum);
        }
    }
}
