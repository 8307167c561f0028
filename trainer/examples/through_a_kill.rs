//! Continues a training run after a kill -9: `cargo run --release -p unisono-trainer --example
//! through_a_kill`.
//!
//! Three processes train a GPT with ZeRO, and save checkpoints. One process is killed. The others
//! `shrink` their communicator, load the last checkpoint, which three ranks saved, as two ranks,
//! and train to the end. Losses and weights are bitwise equal to those of two ranks that start from
//! that checkpoint.

mod common;

use common::Result;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;
use unisono::{Communicator, ReductionOrder, UniqueId};
use unisono_trainer::checkpoint;
use unisono_trainer::config::Config;
use unisono_trainer::train::{Run, train_on_threads};

const RANKS: usize = 3;
/// Rank that is killed, and the number of steps before.
const VICTIM: (usize, u64) = (1, 12);
/// Last checkpoint before the kill, and the interval of checkpoints.
const SAVED_AT: u64 = 10;
const SAVED_EVERY: u64 = 5;
const STEPS: u64 = 20;
/// Folder of the text and the checkpoints.
const FOLDER: &str = "SURVIVE_FOLDER";

fn main() -> Result<()> {
    match std::env::var(FOLDER) {
        Ok(folder) => rank_main(Path::new(&folder)),
        Err(_) => launcher_main(),
    }
}

fn launcher_main() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let text: String = (0..400).map(|line| format!("line {line} of {}\n", line * 7 % 13)).collect();
    std::fs::write(folder.path().join("text.txt"), text)?;
    let id = UniqueId::new(std::net::Ipv4Addr::LOCALHOST.into())?.to_string();
    let start = |rank: usize| {
        Command::new(std::env::current_exe()?)
            .envs([("RANK", rank.to_string()), ("WORLD_SIZE", RANKS.to_string()), ("UNISONO_ID", id.clone())])
            .env(FOLDER, folder.path())
            .stdout(Stdio::piped())
            .spawn()
    };
    let ranks = (0..RANKS).map(start).collect::<std::io::Result<Vec<_>>>()?;
    let mut ends = Vec::new();
    for (rank, child) in ranks.into_iter().enumerate() {
        let output = child.wait_with_output()?;
        let said = String::from_utf8(output.stdout)?;
        print!("{said}");
        if output.status.success() == (rank == VICTIM.0) {
            return Err(format!("rank {rank} ended otherwise than it should").into());
        }
        ends.extend(said.lines().last().filter(|_| rank != VICTIM.0).map(str::to_owned));
    }
    let expected = expected_with_two_ranks(folder.path())?;
    if ends.iter().any(|end| *end != expected) {
        return Err(format!("two ranks from that checkpoint on: {expected}").into());
    }
    println!("two ranks from that checkpoint on: {expected}: the same, to the last bit");
    Ok(())
}

/// Returns the result of two ranks that start from the same checkpoint.
fn expected_with_two_ranks(folder: &Path) -> Result<String> {
    let (saved, again) = (folder.join("checkpoints"), folder.join("again"));
    let (_, source) = checkpoint::list(&saved)
        .into_iter()
        .find(|(step, _)| *step == SAVED_AT)
        .ok_or("the checkpoint is gone")?;
    let target = again.join(source.file_name().ok_or("a checkpoint has a name")?);
    std::fs::create_dir_all(&target)?;
    for file in std::fs::read_dir(source)? {
        let file = file?;
        std::fs::copy(file.path(), target.join(file.file_name()))?;
    }
    let outcome = train_on_threads(RANKS - 1, &config(folder, &again, true)?)?;
    Ok(summary(&outcome.losses, outcome.fingerprint))
}

fn rank_main(folder: &Path) -> Result<()> {
    let settings = unisono::Config::from_env()?.with_reduction_order(ReductionOrder::RankOrder);
    let world = Communicator::builder().config(&settings).from_env()?;
    let (rank, checkpoints) = (world.rank(), folder.join("checkpoints"));
    let begins = config(folder, &checkpoints, false)?;
    let Err(error) = train(Run::new(&begins, world.clone())?, (rank == VICTIM.0).then_some(VICTIM.1)) else {
        return Err("nobody was missed".into());
    };
    println!("rank {rank}: {error}");
    match error.downcast_ref() {
        Some(unisono_nn::Error::Collective(cause)) if cause.is_recoverable() => {}
        _ => return Err(error),
    }
    let begun = Instant::now();
    // Nothing of the failed step is used: the run goes on from the checkpoint.
    let world = world.shrink()?;
    let run = Run::new(&config(folder, &checkpoints, true)?, world.clone())?;
    let (rank_now, ranks, step) = (world.rank(), world.size(), run.steps_taken());
    println!(
        "rank {rank} goes on as rank {rank_now} of {ranks} from step {step}, after {:.0?}",
        begun.elapsed()
    );
    let (losses, weights) = train(run, None)?;
    println!("{}", summary(&losses, weights));
    Ok(())
}

/// Takes the remaining steps. Returns their losses, and a hash of the weights.
fn train(mut run: Run, dies_after: Option<u64>) -> Result<(Vec<f64>, u64)> {
    let mut losses = Vec::new();
    while run.steps_taken() < STEPS {
        if dies_after == Some(run.steps_taken()) {
            kill_self();
        }
        losses.push(run.step()?.loss);
        if run.steps_taken().is_multiple_of(SAVED_EVERY) {
            run.save()?;
        }
    }
    Ok((losses, run.fingerprint()?))
}

fn summary(losses: &[f64], weights: u64) -> String {
    let last = losses.last().copied().unwrap_or(f64::NAN);
    let sum = losses.iter().fold(0u64, |sum, loss| sum.rotate_left(1) ^ loss.to_bits());
    format!("{} losses to {last:.4} ({sum:016x}), weights {weights:016x}", losses.len())
}

fn config(folder: &Path, checkpoints: &Path, resume: bool) -> Result<Config> {
    let varying = [
        format!("data.path={}", folder.join("text.txt").display()),
        format!("checkpoint.folder={}", checkpoints.display()),
        format!("checkpoint.every={SAVED_EVERY}"),
        format!("checkpoint.resume={resume}"),
        format!("schedule.steps={STEPS}"),
    ];
    let small =
        ["model.layers=2", "model.width=32", "model.heads=2", "model.context=32", "strategy.kind=zero2"];
    let run = ["data.global_batch=12", "data.micro_batch=2", "schedule.warmup=2", "checkpoint.keep=9"];
    let quiet = ["sample.tokens=0", "log.validate_every=0", "log.every=1000"];
    let fixed = [&small[..], &run, &quiet].concat().into_iter().map(str::to_owned);
    Ok(Config::load(None, &fixed.chain(varying).collect::<Vec<_>>())?)
}

fn kill_self() {
    let _ = Command::new("kill").args(["-9", &std::process::id().to_string()]).status();
    // The signal is on its way.
    std::thread::sleep(std::time::Duration::from_secs(10));
}
