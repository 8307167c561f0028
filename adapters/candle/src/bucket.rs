//! Buckets: variables of one type that are reduced as one flat tensor.
//!
//! They are not those of `unisono-parallel`, which keeps parameters in buffers of its own
//! (docs/decisions/0025-adapters-have-buckets-of-their-own.md).

use crate::error::Result;
use crate::params::Params;
use candle_core::backprop::GradStore;
use candle_core::{Tensor, Var};

/// Bytes from which a bucket is full, if the caller sets no other size.
pub(crate) const BUCKET_BYTES: usize = 1 << 20;

/// Variables of one element type on one device.
#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    pub(crate) vars: Vec<Var>,
}

impl Bucket {
    /// Divides the variables that have gradients into buckets, in order.
    pub(crate) fn divide(params: &Params, bucket_bytes: usize) -> Vec<Self> {
        let mut buckets: Vec<Self> = Vec::new();
        for var in params.trained() {
            let has_room = |bucket: &&mut Self| {
                let first = &bucket.vars[0];
                let fits = bucket.elements() * first.dtype().size_in_bytes() < bucket_bytes;
                fits && first.dtype() == var.dtype() && first.device().same_device(var.device())
            };
            match buckets.last_mut().filter(has_room) {
                Some(bucket) => bucket.vars.push(var.clone()),
                None => buckets.push(Self { vars: vec![var.clone()] }),
            }
        }
        buckets
    }

    /// Returns the number of elements.
    pub(crate) fn elements(&self) -> usize {
        self.vars.iter().map(|var| var.elem_count()).sum()
    }

    /// Returns the gradients one after the other. A variable without a gradient has zeros.
    pub(crate) fn flat_gradients(&self, gradients: &GradStore) -> Result<Vec<Tensor>> {
        let flat = |var: &Var| match gradients.get(var) {
            Some(gradient) => Ok(gradient.flatten_all()?),
            None => Ok(Tensor::zeros(var.elem_count(), var.dtype(), var.device())?),
        };
        self.vars.iter().map(flat).collect()
    }

    /// Returns the parts of a flat tensor, each in the shape of its variable.
    pub(crate) fn unpack(&self, flat: &Tensor) -> Result<Vec<Tensor>> {
        let mut start = 0;
        let part = |var: &Var| {
            let part = flat.narrow(0, start, var.elem_count())?.reshape(var.shape())?;
            start += var.elem_count();
            Ok(part)
        };
        self.vars.iter().map(part).collect()
    }
}
