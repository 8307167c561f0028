//! Whole buckets of weights and gradients, as modules access them.

use crate::bucket::{BucketId, FlatBuffer, Layout};
use std::ops::Range;
use std::sync::Arc;
use unisono_cuda::device::compute::Compute;
use unisono_cuda::device::{View, ViewMut};
use unisono_nn::allocator::{AllocClass, Allocator};
use unisono_nn::error::Result;
use unisono_nn::parameter::{Dtype, Inventory, ParameterId, UnitId};
use unisono_nn::strategy::DeviceStore;

/// Keeps the buckets that are complete on this rank. Modules receive views, not copies; only 16-bit
/// numbers are widened while a module uses them.
pub struct ParamStore {
    /// Inventory of the parameters.
    pub inventory: Arc<Inventory>,
    /// Layout of the parameters.
    pub layout: Arc<Layout>,
    /// Allocator of the buffers.
    pub memory: Allocator,
    weights: Vec<Option<FlatBuffer>>,
    gradients: Vec<Option<FlatBuffer>>,
    /// Widened weights of 16-bit parameters, while their unit is open.
    widened: Vec<Option<FlatBuffer>>,
    /// Gradients of 16-bit parameters, while modules add to them.
    wide_grads: Vec<Option<FlatBuffer>>,
    copies: u64,
}

impl ParamStore {
    /// Creates an empty store.
    pub fn new(inventory: Arc<Inventory>, layout: Arc<Layout>, memory: &Allocator) -> Self {
        let buckets = || layout.buckets.iter().map(|_| None).collect();
        let parameters = || inventory.parameters.iter().map(|_| None).collect();
        Self {
            weights: buckets(),
            gradients: buckets(),
            widened: parameters(),
            wide_grads: parameters(),
            memory: memory.clone(),
            inventory,
            layout,
            copies: 0,
        }
    }

    /// Returns the number of copies between buckets and modules: 16-bit weights that were widened,
    /// gradients that were widened to be added to, and sums that were rounded into their bucket.
    pub fn copies(&self) -> u64 {
        self.copies
    }

    /// Computes initial values of the elements `range` of a bucket. The result is equal on every
    /// rank.
    ///
    /// # Errors
    /// Fails if the GPU that holds flat buffers fails. This applies to all functions of this type.
    pub fn initial_weights(&self, bucket: BucketId, range: Range<usize>, seed: u64) -> Result<FlatBuffer> {
        let dtype = self.layout[bucket].dtype;
        let mut numbers = FlatBuffer::zeros(&self.memory, AllocClass::Weights, dtype, range.len())?;
        for (id, of_parameter, of_bucket) in self.layout[bucket].entries_within(range.clone()) {
            let mut values = self.memory.alloc(AllocClass::Buffers, of_parameter.len());
            self.inventory[id].initialize(seed, of_parameter, &mut values);
            numbers.narrow(of_bucket.start - range.start..of_bucket.end - range.start, &values)?;
        }
        Ok(numbers)
    }

    /// Stores a bucket's weights.
    pub fn put_weights(&mut self, bucket: BucketId, weights: FlatBuffer) {
        self.weights[bucket.0] = Some(weights);
    }

    /// Removes a bucket's weights, if they are present.
    pub fn take_weights(&mut self, bucket: BucketId) -> Option<FlatBuffer> {
        self.weights[bucket.0].take()
    }

    /// Returns a bucket's weights, if they are present.
    pub fn bucket_weights(&self, bucket: BucketId) -> Option<&FlatBuffer> {
        self.weights[bucket.0].as_ref()
    }

    /// Returns a bucket's weights for changes.
    ///
    /// # Panics
    /// Panics if they are not present.
    pub fn weights_mut(&mut self, bucket: BucketId) -> &mut FlatBuffer {
        self.weights[bucket.0].as_mut().expect("the weights are whole")
    }

    /// Stores a bucket's gradients.
    pub fn put_gradients(&mut self, bucket: BucketId, gradients: FlatBuffer) {
        self.gradients[bucket.0] = Some(gradients);
    }

    /// Removes a bucket's gradients; zeros if there are none.
    ///
    /// # Errors
    /// Fails as [`ParamStore::initial_weights`] does.
    pub fn take_gradients(&mut self, bucket: BucketId) -> Result<FlatBuffer> {
        // Other ranks may have gradients for this bucket, so the collective needs a buffer on this
        // rank even if no module has added to it.
        self.alloc_gradients(bucket)?;
        Ok(self.gradients[bucket.0].take().expect("just made"))
    }

    fn alloc_gradients(&mut self, bucket: BucketId) -> Result<()> {
        if self.gradients[bucket.0].is_none() {
            self.gradients[bucket.0] = Some(self.zero_gradients(bucket, self.layout[bucket].count)?);
        }
        Ok(())
    }

    /// Allocates zero gradients for `count` elements of a bucket.
    ///
    /// # Errors
    /// Fails as [`ParamStore::initial_weights`] does.
    pub fn zero_gradients(&self, bucket: BucketId, count: usize) -> Result<FlatBuffer> {
        Ok(FlatBuffer::zeros(&self.memory, AllocClass::Gradients, self.layout[bucket].grad_dtype, count)?)
    }

    /// Widens the 16-bit weights of a unit for its modules.
    ///
    /// # Errors
    /// Fails as [`ParamStore::initial_weights`] does.
    pub fn widen_unit(&mut self, unit: UnitId) -> Result<()> {
        for id in self.parameters_of(unit) {
            let (bucket, range) = self.layout.location(id);
            if let Some(numbers) = self.weights[bucket.0].as_ref().filter(|numbers| is_narrow(numbers)) {
                self.widened[id.0] = Some(self.widened_copy(numbers, range)?);
                self.copies += 1;
            }
        }
        Ok(())
    }

    /// Copies elements to 32 bits.
    fn widened_copy(&self, numbers: &FlatBuffer, range: Range<usize>) -> Result<FlatBuffer> {
        let count = range.len();
        let mut wide = FlatBuffer::new(&self.memory, AllocClass::Buffers, Dtype::F32, count)?;
        wide.copy_range(0..count, numbers, range)?;
        Ok(wide)
    }

    /// Drops the copies of [`ParamStore::widen_unit`].
    pub fn drop_widened(&mut self, unit: UnitId) {
        for id in self.parameters_of(unit) {
            self.widened[id.0] = None;
        }
    }

    /// Returns the parameters that a unit uses, including borrowed ones. Leaves out parameters that
    /// are elsewhere.
    pub(crate) fn parameters_of(&self, unit: UnitId) -> Vec<ParameterId> {
        self.inventory.present_of(unit).collect()
    }

    /// Returns a parameter's weights in host memory.
    ///
    /// # Panics
    /// Panics if the bucket is absent: the unit was used without `pre_unit`.
    pub fn weights(&self, id: ParameterId) -> &[f32] {
        let (bucket, range) = self.layout.location(id);
        let full = self.weights[bucket.0].as_ref().and_then(FlatBuffer::as_f32);
        let narrow = || self.widened[id.0].as_ref().and_then(FlatBuffer::as_f32);
        full.map(|full| &full[range]).or_else(narrow).unwrap_or_else(|| self.panic_not_gathered(id))
    }

    fn panic_not_gathered(&self, id: ParameterId) -> ! {
        panic!("{} is used outside of its unit", self.inventory[id].name)
    }

    /// Returns a parameter's weights and the gradient to add to, in host memory; `None` if it is
    /// frozen or in GPU memory.
    pub fn weights_and_gradient(&mut self, id: ParameterId) -> Option<(&[f32], &mut [f32])> {
        if !self.inventory[id].trainable || self.is_on_device() {
            return None;
        }
        let (bucket, range) = self.layout.location(id);
        self.alloc_wide_grad(id).expect("the host's memory");
        let full = self.weights[bucket.0].as_ref().and_then(FlatBuffer::as_f32);
        let narrow = self.widened[id.0].as_ref().and_then(FlatBuffer::as_f32);
        let weights = full.map(|full| &full[range.clone()]).or(narrow);
        let sum = match self.gradients[bucket.0].as_mut().and_then(FlatBuffer::as_f32_mut) {
            Some(gradients) => &mut gradients[range],
            None => self.wide_grads[id.0].as_mut().and_then(FlatBuffer::as_f32_mut).expect("just made"),
        };
        // Deferred gradients come when the weights of their unit may be freed, and need none.
        Some((weights.unwrap_or_default(), sum))
    }

    /// Returns true if the store is in GPU memory.
    pub fn is_on_device(&self) -> bool {
        self.memory.lane().is_some()
    }

    /// Allocates a 32-bit buffer for a gradient that is kept in 16 bits.
    fn alloc_wide_grad(&mut self, id: ParameterId) -> Result<()> {
        let (bucket, range) = self.layout.location(id);
        self.alloc_gradients(bucket)?;
        let gradients = self.gradients[bucket.0].as_ref().expect("just made");
        // The wide sum begins as a copy, because the bucket may hold gradients of earlier
        // micro-batches.
        if is_narrow(gradients) && self.wide_grads[id.0].is_none() {
            self.wide_grads[id.0] = Some(self.widened_copy(gradients, range)?);
            self.copies += 1;
        }
        Ok(())
    }

    /// Adds the 32-bit buffer to the parameter's gradient at the end of its backward.
    ///
    /// # Errors
    /// Fails as [`ParamStore::initial_weights`] does.
    pub fn fold_wide_grad(&mut self, id: ParameterId) -> Result<()> {
        let (bucket, range) = self.layout.location(id);
        if let (Some(sum), Some(gradients)) = (self.wide_grads[id.0].take(), &mut self.gradients[bucket.0]) {
            gradients.copy_range(range, &sum, 0..sum.len())?;
            self.copies += 1;
        }
        Ok(())
    }
}

impl DeviceStore for ParamStore {
    fn lane(&self) -> &Arc<Compute> {
        self.memory.lane().expect("a store in GPU memory")
    }

    fn is_trainable(&self, id: ParameterId) -> bool {
        self.inventory[id].trainable
    }

    fn device_weights(&self, id: ParameterId) -> View<'_, f32> {
        let (bucket, range) = self.layout.location(id);
        let full = device_view(&self.weights[bucket.0], range.clone());
        full.or_else(|| device_view(&self.widened[id.0], 0..range.len()))
            .unwrap_or_else(|| self.panic_not_gathered(id))
    }

    fn weights_to_host(&self, id: ParameterId) -> Result<Vec<f32>> {
        let (bucket, range) = self.layout.location(id);
        let mut copy = vec![0.0; range.len()];
        self.weights[bucket.0]
            .as_ref()
            .unwrap_or_else(|| self.panic_not_gathered(id))
            .widen(range, &mut copy)?;
        Ok(copy)
    }

    fn device_gradient(&mut self, id: ParameterId) -> Result<Option<ViewMut<'_, f32>>> {
        if !self.inventory[id].trainable {
            return Ok(None);
        }
        let (bucket, range) = self.layout.location(id);
        self.alloc_wide_grad(id)?;
        let sum = match &mut self.wide_grads[id.0] {
            Some(sum) => sum.as_device_mut().and_then(|sum| sum.view_mut(0..range.len())),
            None => {
                let gradients = self.gradients[bucket.0].as_mut().and_then(FlatBuffer::as_device_mut);
                gradients.and_then(|gradients| gradients.view_mut(range))
            }
        };
        Ok(sum)
    }
}

/// Returns true if modules need a widened copy.
fn is_narrow(numbers: &FlatBuffer) -> bool {
    numbers.dtype() == Dtype::Bf16
}

fn device_view(numbers: &Option<FlatBuffer>, range: Range<usize>) -> Option<View<'_, f32>> {
    numbers.as_ref()?.as_device()?.view(range)
}
