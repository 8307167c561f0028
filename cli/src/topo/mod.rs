//! `unisono topo` shows the GPUs of this host and the paths between them.

#[cfg(feature = "gpu")]
mod tables;

use crate::features;

/// Prints a table of the GPUs, and a table of the paths between them.
pub(crate) fn run(arguments: &Arguments) -> Result<u8, String> {
    if arguments.software {
        features::require_emulator()?;
        #[cfg(feature = "emulator")]
        unisono_cuda::emulator::install().map_err(|error| error.to_string())?;
    }
    features::require_gpu()?;
    #[cfg(feature = "gpu")]
    print!("{}", tables::of_this_host().map_err(|error| error.to_string())?);
    Ok(0)
}

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Show the software device, which runs GPU kernels on the CPU and needs a C++ compiler.
    #[arg(long)]
    software: bool,
}
