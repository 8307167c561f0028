//! Planned meshes as runs: their exact memory, and measured steps.

use crate::config::{Config, Pipeline};
use crate::machine::core_seconds;
use crate::output_file::OutputFile;
use crate::train::{DryRun, Run, local_worlds};
use std::path::Path;
use std::thread;
use unisono::Communicator;
use unisono_nn::allocator::AllocClass;
use unisono_nn::error::Result;
use unisono_parallel::mesh::Degrees;
use unisono_plan::cost::{Hardware, in_memory};
use unisono_plan::planner::{Candidate, Measured};

/// Returns the bytes that a rank needs, from the parameters of the model.
///
/// # Errors
/// Fails as the start of the run would.
pub fn exact_memory(candidate: &Candidate, config: &Config) -> Result<usize> {
    let ranks = candidate.parallel.mesh()?.world_size();
    Ok(in_memory(DryRun::new(&config.with_candidate(candidate)?, ranks)?.peak_memory()))
}

/// Writes the configuration of [`Config::with_candidate`], which runs as it is.
///
/// # Errors
/// Fails if the run would not start, or the file cannot be written.
pub(super) fn write(candidate: &Candidate, config: &Config, path: &Path) -> Result<()> {
    exact_memory(candidate, config)?;
    let text = config.with_candidate(candidate)?.to_toml()?;
    OutputFile::write(path, text)
}

/// Takes `steps` steps of a candidate on threads of this process.
///
/// # Errors
/// Fails as the run does.
pub fn measure_candidate(candidate: &Candidate, config: &Config, steps: usize) -> Result<Measured> {
    let config = config.with_candidate(candidate)?;
    measure(&config, local_worlds(candidate.parallel.mesh()?.world_size(), &config)?, steps)
}

/// Takes `steps` steps on the ranks of `worlds`, and one before to warm up.
///
/// # Errors
/// Returns the first error of any rank. It ends all ranks.
pub fn measure(config: &Config, worlds: Vec<Communicator>, steps: usize) -> Result<Measured> {
    let rank = |world: Communicator| {
        let ended = rank_steps(config, world.clone(), steps);
        if let Err(error) = &ended {
            // The other ranks would wait for this one until their timeout.
            world.abort(&error.to_string());
        }
        ended
    };
    let ranks: Result<Vec<_>> = thread::scope(|scope| {
        let threads: Vec<_> = worlds.into_iter().map(|world| scope.spawn(|| rank(world))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    });
    let ranks = ranks?;
    let step = |step: usize| ranks.iter().map(|rank| rank.times[step]).fold(0.0, f64::max);
    Ok(Measured {
        bytes: ranks.iter().map(|rank| rank.bytes).fold(0.0, f64::max),
        seconds: (0..steps).map(step).fold(f64::INFINITY, f64::min),
        core_seconds: ranks[0].core_seconds / steps as f64,
    })
}

/// Measurements of one rank.
struct RankSteps {
    bytes: f64,
    /// Seconds of each step.
    times: Vec<f64>,
    /// Processor time of the process in all steps.
    core_seconds: f64,
}

fn rank_steps(config: &Config, world: Communicator, steps: usize) -> Result<RankSteps> {
    let mut run = Run::new(config, world)?;
    // The first step allocates what later steps find in the cache.
    run.step()?;
    let start = core_seconds();
    let times = (0..steps).map(|_| Ok(run.step()?.time.as_secs_f64())).collect::<Result<Vec<_>>>()?;
    let core_seconds = core_seconds() - start;
    let peak = |class: AllocClass| run.ledger().classes[class as usize].1;
    let kept =
        [AllocClass::Weights, AllocClass::Optimizer].map(|class| run.ledger().classes[class as usize].0);
    let bytes = kept[0] + kept[1] + peak(AllocClass::Gradients) + peak(AllocClass::Activations);
    Ok(RankSteps { bytes: bytes as f64, times, core_seconds })
}

/// Measures the floating-point operations per second of this model's forward and backward on a core
/// while all cores do the same.
///
/// # Errors
/// Fails as a run of one rank does.
fn model_flops(config: &Config) -> Result<f64> {
    let mut single = config.clone();
    (single.mesh, single.pipeline) = (Degrees::default(), Pipeline::default());
    (single.data.breadth_first, single.data.global_batch) = (1, single.data.micro_batch);
    single.strategy.shard_ranks = 0;
    let flops = DryRun::new(&single, 1)?.flops();
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let times: Result<Vec<_>> = thread::scope(|scope| {
        let run = || measure(&single, local_worlds(1, &single)?, RATE_STEPS);
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(run)).collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    });
    Ok(flops / times?.into_iter().map(|measured| measured.core_seconds).fold(0.0, f64::max))
}

/// Measures the rate of this model's forward and backward, and how it falls with fewer rows.
///
/// # Errors
/// Fails as a run of one rank does.
pub fn measure_rate(config: &Config, hardware: &mut Hardware) -> Result<()> {
    let mut fewer = config.clone();
    fewer.model.context = config.model.context.div_ceil(FEWER_ROWS);
    let rate = |config: &Config| -> Result<(f64, f64)> {
        Ok(((config.data.micro_batch * config.model.context) as f64, model_flops(config)?))
    };
    let (full, part) = (rate(config)?, rate(&fewer)?);
    match full.0 > part.0 {
        true => hardware.fit_rate([full, part]),
        false => hardware.flops = full.1,
    }
    Ok(())
}

/// Ratio of the numbers of rows of both measurements.
const FEWER_ROWS: usize = 4;

/// Number of steps that measure the rate of a model.
const RATE_STEPS: usize = 20;
