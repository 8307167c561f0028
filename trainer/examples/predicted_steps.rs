//! Compares predicted with measured step times of ten meshes of eight ranks on this machine, and on
//! two hosts with throttled links between them.
//!
//! Ranks that share cores fill them. The processor time of a step, divided by the number of cores,
//! is that of a step alone on the machine. The time by the clock also depends on what else the
//! machine does. It is compared over throttled links, where cores are idle.
//!
//! Run with `cargo run --release -p unisono-trainer --example predicted_steps`.

#[path = "../tests/support/hosts.rs"]
mod hosts;
#[path = "../tests/support/ten_meshes.rs"]
mod ten_meshes;

use ten_meshes::{MESHES, Mesh, RANKS, candidate, config};
use unisono_nn::Result;
use unisono_plan::cost::{Hardware, Link};
use unisono_trainer::config::Config;
use unisono_trainer::machine::this_machine;
use unisono_trainer::plan_command::{measure, measure_candidate, measure_rate};

fn main() -> Result<()> {
    let folder = tempfile::tempdir().expect("a folder");
    let mut config = config(folder.path(), 8, 256, 128);
    // Several buckets, so that backward can hide their reductions.
    config.strategy.bucket_mb = 4.0;
    let mut here = this_machine(RANKS)?;
    measure_rate(&config, &mut here)?;
    let (rate, half) = (here.flops / 1e9, here.half_rate_rows);
    println!("a core reaches {rate:.1} GFLOP/s in this model with many rows, and half with {half:.0}");
    let errors = MESHES.into_iter().map(|mesh| in_memory(mesh, &config, &here));
    report(errors.collect::<Result<_>>()?);
    here.set_per_host(RANKS / HOSTS);
    here.inter_host = THROTTLED;
    println!("\nwith {HOSTS} hosts, and 0.2 ms a message and 100 MB/s between them");
    let errors = MESHES.into_iter().map(|mesh| over_throttled_links(mesh, &config, &here));
    report(errors.collect::<Result<_>>()?);
    Ok(())
}

const HOSTS: usize = 2;
const THROTTLED: Link = Link { alpha: 2e-4, beta: 1e8 };
const STEPS: usize = 5;

/// Returns the relative error of the step predicted for ranks that share memory.
fn in_memory(mesh: Mesh, config: &Config, here: &Hardware) -> Result<f64> {
    let candidate = candidate(mesh, config, here);
    let measured = measure_candidate(&candidate, config, STEPS)?;
    Ok(compare(mesh, "of all cores", candidate.seconds(), measured.core_seconds))
}

/// Returns the relative error of the step predicted for ranks on hosts with throttled links.
fn over_throttled_links(mesh: Mesh, config: &Config, hardware: &Hardware) -> Result<f64> {
    let candidate = candidate(mesh, config, hardware);
    let worlds = hosts::communicators(RANKS, hardware.per_host, hardware.inter_host)?;
    let measured = measure(&config.with_candidate(&candidate)?, worlds, STEPS)?;
    Ok(compare(mesh, "by the clock", candidate.seconds(), measured.seconds))
}

fn compare(mesh: Mesh, clock: &str, predicted: f64, measured: f64) -> f64 {
    let error = predicted / measured - 1.0;
    let [predicted, measured] = [predicted, measured].map(|seconds| 1e3 * seconds);
    println!("{mesh:?}: {predicted:.0} ms predicted, {measured:.0} ms {clock}, {:+.0} %", 100.0 * error);
    error
}

fn report(errors: Vec<f64>) {
    let far = errors.iter().filter(|error| error.abs() > 0.15).count();
    println!("{far} of {} meshes are more than 15 % apart", errors.len());
}
