//! Compares predicted with measured step times of ten meshes of eight ranks on this machine. The
//! times depend on what else it does.
//!
//! Run with `cargo run --release -p unisono-trainer --example predicted_steps`.

#[path = "../tests/support/ten_meshes.rs"]
mod ten_meshes;

use ten_meshes::{MESHES, RANKS, candidate, config};
use unisono_trainer::Result;
use unisono_trainer::cost::Hardware;
use unisono_trainer::planner::model_flops;

fn main() -> Result<()> {
    let folder = tempfile::tempdir().expect("a folder");
    let config = config(folder.path(), 8, 256, 128);
    let mut here = Hardware::named("here", RANKS)?;
    here.flops = model_flops(&config)?;
    println!("a core reaches {:.1} GFLOP/s in this model", here.flops / 1e9);
    let mut far = 0;
    for mesh in MESHES {
        let candidate = candidate(mesh, &config, &here);
        let measured = candidate.measure(&config, 5)?;
        let apart = candidate.seconds() / measured.seconds - 1.0;
        far += usize::from(apart.abs() > 0.15);
        let [predicted, measured] = [candidate.seconds(), measured.seconds].map(|seconds| 1e3 * seconds);
        let apart = 100.0 * apart;
        println!("{mesh:?}: {predicted:.1} ms predicted, {measured:.1} ms measured, {apart:+.0} %");
    }
    println!("{far} of {} meshes are more than 15 % apart", MESHES.len());
    Ok(())
}
