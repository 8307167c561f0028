//! Measurements of ranks on GPUs, or on the software device.

#[cfg(feature = "gpu")]
mod bench;
#[cfg(feature = "gpu")]
mod call;
#[cfg(feature = "gpu")]
mod measure;
#[cfg(feature = "gpu")]
mod paths;
#[cfg(feature = "gpu")]
mod roofline;

#[cfg(feature = "gpu")]
pub(super) use measure::measure;

use super::args::Arguments;
use crate::features;

/// Memory of the ranks' buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Device {
    /// Host memory.
    #[default]
    Cpu,
    /// Memory of NVIDIA GPUs.
    Cuda,
    /// Memory of the software device, which needs a C++ compiler. Its results are right, but its
    /// times say nothing about GPUs.
    Software,
}

/// Refuses a device that this build does not have. For GPUs, also refuses options that apply only
/// to host memory.
pub(super) fn check(arguments: &Arguments) -> Result<(), String> {
    match arguments.device {
        Device::Cpu => {}
        Device::Cuda => features::require_gpu()?,
        Device::Software => features::require_emulator()?,
    }
    let unfit = [
        (arguments.samples.is_some(), "--samples"),
        (arguments.per_iteration, "-I"),
        (arguments.memory, "--memory"),
        (arguments.compare.is_some(), "--compare"),
        (arguments.bind.is_some(), "--bind"),
        (arguments.blocking == 0, "-z 0"),
    ];
    let on_gpus = arguments.device != Device::Cpu;
    match unfit.iter().find(|(given, _)| *given && on_gpus) {
        Some((_, flag)) => Err(format!("{flag} does not go with --device: it is for ranks on CPUs")),
        None if arguments.graphs > 0 && !on_gpus => Err("-G is for ranks on GPUs: --device cuda".to_owned()),
        None => Ok(()),
    }
}
