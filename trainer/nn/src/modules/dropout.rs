//! Dropout.

use super::Module;
use crate::error::Result;
use crate::ops::{Ops, ValuesMut};
use crate::parameter::Registry;
use crate::pass::Pass;
use crate::random::splitmix;
use crate::tensor::Tensor;

/// Selects one of the [`Seeds`](crate::pass::Seeds).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RngStream {
    /// Equal on all ranks of a tensor parallel group, for replicated tensors.
    Shared,
    /// Different on each rank, for sharded tensors.
    PerRank,
}

/// Sets each element to zero with probability `rate`, and divides it by 1 - `rate` otherwise
/// (Srivastava et al., "Dropout", 2014).
///
/// The mask is a function of seed, site and element index. So only a number is saved, and a
/// repeated pass drops the same elements. The pattern repeats after 2^32 elements of one tensor.
#[derive(Clone, Copy, Debug)]
pub struct Dropout {
    rate: f32,
    site: u64,
    rng_stream: RngStream,
}

impl Dropout {
    /// Creates dropout at the site `name`, which has its own random stream.
    ///
    /// # Panics
    /// Panics if `rate` is not in [0, 1).
    pub fn new(registry: &Registry, name: &str, rate: f32, draw: RngStream) -> Self {
        assert!((0.0..1.0).contains(&rate), "{rate} is no rate of dropout");
        Self { rate, site: registry.rng_site(name), rng_stream: draw }
    }

    fn key(&self, pass: &Pass<'_>) -> u64 {
        let seeds = pass.seeds();
        let seed = if self.rng_stream == RngStream::Shared { seeds.shared } else { seeds.per_rank };
        splitmix(seed ^ splitmix(self.site))
    }

    /// Returns the threshold of dropped draws among 2^32, and the scale of kept elements.
    fn threshold_and_scale(&self) -> (u32, f32) {
        ((f64::from(self.rate) * 2.0f64.powi(32)) as u32, 1.0 / (1.0 - self.rate))
    }

    /// Applies the mask of `key`.
    fn apply(&self, ops: &dyn Ops, values: ValuesMut<'_>, key: u64) -> Result<()> {
        let (least, factor) = self.threshold_and_scale();
        ops.dropout(values, key, least, factor)
    }
}

impl Module for Dropout {
    fn forward(&self, pass: &mut Pass<'_>, mut input: Tensor) -> Result<Tensor> {
        if self.rate > 0.0 && pass.keeps() {
            let key = self.key(pass);
            self.apply(pass.ops(), input.values_mut(), key)?;
            pass.save(key);
        }
        Ok(input)
    }

    fn backward(&self, pass: &mut Pass<'_>, mut gradient: Tensor) -> Result<Tensor> {
        if self.rate > 0.0 {
            let key = pass.restore();
            self.apply(pass.ops(), gradient.values_mut(), key)?;
        }
        Ok(gradient)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocator::Allocator;
    use crate::modules::GradCheck;
    use crate::ops::Host;
    use crate::parameter::Inventory;
    use crate::pass::Seeds;
    use crate::strategy::LocalStrategy;

    const COUNT: usize = 1 << 16;

    fn kept(rate: f32, key: u64) -> Vec<bool> {
        let mut values = vec![1.0; COUNT];
        let dropout = Dropout { rate, site: 0, rng_stream: RngStream::Shared };
        let host = Host { threads: 1, memory: Allocator::default() };
        dropout.apply(&host, ValuesMut::Host(&mut values), key).expect("a mask");
        assert!(values.iter().all(|value| *value == 0.0 || *value == 1.0 / (1.0 - rate)));
        values.iter().map(|value| *value != 0.0).collect()
    }

    /// Returns the fraction of elements kept by both masks.
    fn overlap(first: &[bool], second: &[bool]) -> f64 {
        first.iter().zip(second).filter(|(first, second)| **first && **second).count() as f64
            / first.len() as f64
    }

    #[test]
    fn drop_rate_is_respected() {
        for rate in [0.1, 0.5, 0.9] {
            let dropped = kept(rate, 12).iter().filter(|kept| !**kept).count() as f64 / COUNT as f64;
            assert!((dropped - f64::from(rate)).abs() < 0.01, "{dropped} for {rate}");
        }
    }

    #[test]
    fn masks_are_independent_across_keys_and_positions() {
        let mask = kept(0.5, 3);
        assert_eq!(mask, kept(0.5, 3));
        for key in [2, 4, 3 << 32, 3 | 1 << 32, splitmix(3)] {
            assert!((overlap(&mask, &kept(0.5, key)) - 0.25).abs() < 0.01, "key {key}");
        }
        for lag in [1, 2, 64, 768] {
            assert!((overlap(&mask[lag..], &mask[..COUNT - lag]) - 0.25).abs() < 0.01, "lag {lag}");
        }
    }

    #[test]
    fn dropout_is_off_without_backward() {
        let memory = Allocator::default();
        let mut strategy = LocalStrategy::new(Inventory::default(), &memory, 0);
        let mut pass = Pass::new(&mut strategy, &memory, Seeds::default(), 1);
        let dropout = Dropout { rate: 0.5, site: 0, rng_stream: RngStream::Shared };
        let ones = || Tensor::from_slice(&memory, 1, 64, &[1.0; 64]);
        let inferred = pass.no_grad(|pass| dropout.forward(pass, ones())).expect("forward");
        assert_eq!((inferred.data(), pass.is_complete(), pass.keeps()), (&[1.0; 64][..], true, true));
        let trained = dropout.forward(&mut pass, ones()).expect("forward");
        assert!(trained.data().contains(&0.0) && !pass.is_complete());
    }

    #[test]
    fn mask_depends_on_seed_and_site() {
        let drop = |site, draw| {
            GradCheck::new(|_| Dropout { rate: 0.5, site, rng_stream: draw }, 8, 8).forward_and_backward()
        };
        assert_eq!(drop(1, RngStream::Shared), drop(1, RngStream::Shared));
        assert_ne!(drop(1, RngStream::Shared), drop(2, RngStream::Shared));
        assert_ne!(drop(1, RngStream::Shared), drop(1, RngStream::PerRank));
        GradCheck::new(|_| Dropout { rate: 0.5, site: 1, rng_stream: RngStream::Shared }, 8, 8)
            .check_gradients(1e-4);
    }
}
