//! Shuttle: models of several threads under many schedules, each of which can be replayed.
//!
//! The models are in `transports/src/tcp/connect` and `src/communicator/shuttle_tests.rs`.
//! `SHUTTLE_RANDOM_SEED=number` draws other schedules.

use crate::{Result, cargo, filters};
use clap::Subcommand;
use std::process::Command;

#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    replay: Option<Replay>,
    /// Schedules of each model.
    #[arg(default_value_t = 400)]
    schedules: u64,
    /// Part of the names of the models to run.
    #[arg(default_value = MODELS)]
    filter: String,
}

#[derive(Subcommand)]
enum Replay {
    /// Run one schedule again, as a failed model printed it.
    Replay {
        /// Package of the model.
        package: String,
        /// Full name of the model.
        test: String,
        /// The printed schedule.
        schedule: String,
    },
}

/// Packages with models.
const PACKAGES: [&str; 2] = ["unisono-transports", "unisono"];
/// Beginning of the names of all models.
const MODELS: &str = "::shuttle_";

/// Runs the models, or replays one schedule.
pub(crate) fn run(arguments: &Arguments) -> Result {
    if let Some(Replay::Replay { package, test, schedule }) = &arguments.replay {
        return replay(package, test, schedule);
    }
    let filter = arguments.filter.as_str();
    let mut found = Err(String::new());
    for package in PACKAGES {
        // A filter of one model is in one of the packages only.
        let matched = filters::check(&mut models(package), &[filter]);
        if matched.is_ok() {
            let schedules = arguments.schedules.to_string();
            cargo::run(models(package).arg(filter).env("SHUTTLE_SCHEDULES", schedules))?;
            found = Ok(());
        } else if filter == MODELS || found.is_err() {
            found = matched;
        }
        if filter == MODELS {
            found.clone()?;
        }
    }
    found
}

fn replay(package: &str, test: &str, schedule: &str) -> Result {
    let folder = cargo::target().join("tmp");
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let file = folder.join(format!("shuttle-schedule-{}", std::process::id()));
    std::fs::write(&file, format!("{schedule}\n")).map_err(|error| format!("{}: {error}", file.display()))?;
    let mut command = models(package);
    command.args(["--exact", test, "--nocapture"]).env("SHUTTLE_REPLAY", &file);
    if std::env::var_os("RUST_BACKTRACE").is_none() {
        command.env("RUST_BACKTRACE", "1");
    }
    let ended = cargo::run(&mut command);
    let _ = std::fs::remove_file(&file);
    ended
}

fn models(package: &str) -> Command {
    let mut command = cargo::cargo();
    command.args(["test", "--quiet", "--no-default-features", "--lib", "-p", package, "--"]);
    command
        .env("RUSTFLAGS", "--cfg shuttle")
        .env("CARGO_TARGET_DIR", "target/shuttle")
        // Building takes most of a short run.
        .env("CARGO_PROFILE_DEV_DEBUG", "line-tables-only")
        .env("CARGO_INCREMENTAL", "0");
    command
}
