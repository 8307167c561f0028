//! Compares predicted with measured step times of ten meshes of eight ranks on this machine.
//!
//! The processor time of a step, divided by the number of cores, is that of a step alone on the
//! machine. The time by the clock also depends on what else the machine does.
//!
//! Run with `cargo run --release -p unisono-trainer --example predicted_steps`.

#[path = "../tests/support/ten_meshes.rs"]
mod ten_meshes;

use ten_meshes::{MESHES, RANKS, candidate, config};
use unisono_trainer::Result;
use unisono_trainer::cost::Hardware;
use unisono_trainer::planner::measure_rate;

fn main() -> Result<()> {
    let folder = tempfile::tempdir().expect("a folder");
    let config = config(folder.path(), 8, 256, 128);
    let mut here = Hardware::named("here", RANKS)?;
    measure_rate(&config, &mut here)?;
    let (rate, half) = (here.flops / 1e9, here.half_rate_rows);
    println!("a core reaches {rate:.1} GFLOP/s in this model with many rows, and half with {half:.0}");
    let mut far = 0;
    for mesh in MESHES {
        let candidate = candidate(mesh, &config, &here);
        let measured = candidate.measure(&config, 5)?;
        let apart = candidate.seconds() / measured.core_seconds - 1.0;
        far += usize::from(apart.abs() > 0.15);
        let times = [candidate.seconds(), measured.core_seconds, measured.seconds];
        let [predicted, cores, clock] = times.map(|seconds| 1e3 * seconds);
        println!(
            "{mesh:?}: {predicted:.0} ms predicted, {cores:.0} ms of all cores, {:+.0} %; {clock:.0} ms by the clock",
            100.0 * apart
        );
    }
    println!("{far} of {} meshes are more than 15 % apart", MESHES.len());
    Ok(())
}
