//! Helpers for the tests of this crate and of those above it.

pub mod slow;
pub mod slow_link;
pub mod yardstick;

use crate::device::Device;
use crate::error::Result;
use crate::modules::Module;
use crate::pass::Pass;
use crate::tensor::Tensor;
use unisono::device::Gpu;
use unisono::{Communicator, Config, ReductionOrder};
use unisono_cuda::test_gpu::uses_machine_gpu;

/// Returns the device for tests: `software`, or `cuda` with `TEST_ON_GPU`.
pub fn device_kind() -> &'static str {
    if uses_machine_gpu() {
        return "cuda";
    }
    // Tests run in parallel, and their communicators share the blocks of the emulator.
    let _ = unisono_cuda::emulator::set_max_resident_blocks(512);
    "software"
}

/// Returns the GPU for tests.
pub fn gpu() -> Gpu {
    match device_kind() {
        "cuda" => Device::gpu_for_rank(0).expect("a GPU"),
        _ => Device::software().expect("a C++ compiler"),
    }
}

/// Runs `body` on `ranks` ranks with rank-order reduction, and returns all results.
pub fn run_ranks<R: Send>(ranks: usize, body: impl Fn(Communicator) -> R + Sync) -> Vec<R> {
    let config = Config::default().with_reduction_order(ReductionOrder::RankOrder);
    run_ranks_with(ranks, &config, body)
}

/// Runs `body` as [`run_ranks`] does, with other communicator settings. On a GPU, each group uses
/// one channel, because many groups share the blocks of the software device.
pub fn run_ranks_with<R: Send>(
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

/// Returns the number of scores that attention has computed on this thread.
#[cfg(feature = "count-scores")]
pub fn computed_scores() -> usize {
    crate::ops::host::attention::tile::COMPUTED_SCORES.get()
}

/// Adds the mean square of a module's output to the total loss, `slope` times.
pub struct BalanceLoss {
    pub module: Box<dyn Module>,
    pub slope: f32,
}

impl Module for BalanceLoss {
    fn forward(&self, pass: &mut Pass<'_>, input: Tensor) -> Result<Tensor> {
        let output = self.module.forward(pass, input)?;
        let squares: f64 = output.data().iter().map(|value| f64::from(*value).powi(2)).sum();
        let count = output.data().len();
        let copy = output.copy()?;
        pass.save(copy);
        pass.add_loss("balance", (squares / count as f64) as f32, self.slope);
        pass.added_mut().metric("numbers", count as f32);
        Ok(output)
    }

    fn backward(&self, pass: &mut Pass<'_>, mut gradient: Tensor) -> Result<Tensor> {
        // The slope was saved after the output, so it is restored first.
        let slope = pass.added_loss_gradient();
        let output: Tensor = pass.restore();
        let factor = 2.0 * slope / output.data().len() as f32;
        let pairs = gradient.data_mut().iter_mut().zip(output.data());
        pairs.for_each(|(gradient, output)| *gradient += factor * output);
        self.module.backward(pass, gradient)
    }
}
