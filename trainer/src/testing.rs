//! Helpers for tests of several modules.

#[path = "../tests/support/yardstick.rs"]
pub(crate) mod yardstick;

use crate::device::Device;
use crate::error::Result;
use crate::nn::Module;
use crate::parallel::{DataParallel, LocalShard};
use crate::parameter::{Inventory, ParameterId};
use crate::pass::Pass;
use crate::tensor::Tensor;
use std::collections::BTreeMap;
use unisono::device::Gpu;
use unisono::{Communicator, Config, ReductionOrder};
use unisono_cuda::test_gpu::uses_machine_gpu;

/// Returns the device for tests: `software`, or `cuda` with `TEST_ON_GPU`.
pub(crate) fn device_kind() -> &'static str {
    if uses_machine_gpu() {
        return "cuda";
    }
    // Tests run in parallel, and their communicators share the blocks of the emulator.
    let _ = unisono_cuda::emulator::set_max_resident_blocks(512);
    "software"
}

/// Returns the GPU for tests.
pub(crate) fn gpu() -> Gpu {
    match device_kind() {
        "cuda" => Device::gpu_for_rank(0).expect("a GPU"),
        _ => Device::software().expect("a C++ compiler"),
    }
}

/// Runs `body` on `ranks` ranks with rank-order reduction, and returns all results.
pub(crate) fn run_ranks<R: Send>(ranks: usize, body: impl Fn(Communicator) -> R + Sync) -> Vec<R> {
    let config = Config::default().with_reduction_order(ReductionOrder::RankOrder);
    run_ranks_with(ranks, &config, body)
}

/// Runs `body` as [`run_ranks`] does, with other communicator settings. On a GPU, each group uses
/// one channel, because many groups share the blocks of the software device.
pub(crate) fn run_ranks_with<R: Send>(
    ranks: usize,
    config: &Config,
    body: impl Fn(Communicator) -> R + Sync,
) -> Vec<R> {
    let gpu = config.gpu.with_channels(1);
    let worlds = Communicator::builder().config(&config.clone().with_gpu(gpu)).local(ranks).unwrap();
    std::thread::scope(|scope| {
        let threads: Vec<_> = worlds.into_iter().map(|world| scope.spawn(|| body(world))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Bits of weights and moments, by parameter and element of the whole tensor.
pub(crate) type Bits = BTreeMap<(ParameterId, usize), Vec<u32>>;

/// Returns the state this rank keeps, without padding.
pub(crate) fn collect_shards(strategy: &mut dyn DataParallel, inventory: &Inventory) -> Bits {
    let mut bits = BTreeMap::new();
    let mut keep = |part: LocalShard<'_>| {
        for (index, place) in part.range.clone().enumerate() {
            let Some(place) = inventory[part.parameter].global_index(place) else { continue };
            let weight = part.weights[index].to_bits();
            let moments = part.moments.iter().map(|moment| moment[index].to_bits());
            bits.insert((part.parameter, place), [weight].into_iter().chain(moments).collect());
        }
        Ok(())
    };
    strategy.for_each_shard(&mut keep).unwrap();
    bits
}

/// Merges the state of all ranks. Copies of the same state must agree.
pub(crate) fn merge_shards(ranks: impl IntoIterator<Item = Bits>) -> Bits {
    let mut merged = Bits::new();
    for (place, bits) in ranks.into_iter().flatten() {
        let known = merged.entry(place).or_insert_with(|| bits.clone());
        assert_eq!(*known, bits, "at {place:?}");
    }
    merged
}

/// Adds the mean square of a module's output to the total loss, `slope` times.
pub(crate) struct BalanceLoss {
    pub(crate) module: Box<dyn Module>,
    pub(crate) slope: f32,
}

impl Module for BalanceLoss {
    fn forward(&self, pass: &mut Pass<'_>, input: Tensor) -> Result<Tensor> {
        let output = self.module.forward(pass, input)?;
        let squares: f64 = output.data().iter().map(|value| f64::from(*value).powi(2)).sum();
        let count = output.data().len();
        let copy = output.copy()?;
        pass.save(copy);
        pass.add_loss("balance", (squares / count as f64) as f32, self.slope);
        pass.metric("numbers", count as f32);
        Ok(output)
    }

    fn backward(&self, pass: &mut Pass<'_>, mut gradient: Tensor) -> Result<Tensor> {
        let slope = pass.added_loss_gradient();
        let output: Tensor = pass.restore();
        let factor = 2.0 * slope / output.data().len() as f32;
        let pairs = gradient.data_mut().iter_mut().zip(output.data());
        pairs.for_each(|(gradient, output)| *gradient += factor * output);
        self.module.backward(pass, gradient)
    }
}
