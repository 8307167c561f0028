//! Configuration of a run: one TOML file, overrides on the command line, and a default for every
//! key.

mod read;
mod renamed_keys;
mod resume_invariants;
mod schema;
mod validate;

pub use crate::config::schema::{
    Checkpoint, Data, DataKind, DeviceKind, FeedForward, Log, Model, ModelKind, Norm, Optimizer,
    OptimizerKind, Sample, Strategy, StrategyKind,
};

use crate::error::{Error, Result};
use crate::mesh::{Degrees, Mesh};
use crate::parallel::Settings;
use crate::train::{BatchPlan, LrSchedule};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Everything that decides about a run. The defaults train a GPT on the bytes of the text files below the current
/// folder, in under a minute on two cores.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// Decides about weights, order and dropout.
    pub seed: u32,
    /// Threads of each rank that work on one matrix product.
    pub threads: usize,
    /// What computes forward and backward; gradients and weights are exchanged, and steps taken, on the CPU.
    pub device: DeviceKind,
    /// What is trained.
    pub model: Model,
    /// What it is trained on, in which batches.
    pub data: Data,
    /// How the ranks are cut.
    pub mesh: Degrees,
    /// How weights follow gradients.
    pub optimizer: Optimizer,
    /// How long, and how fast when.
    pub schedule: LrSchedule,
    /// How data ranks share the work and the state.
    pub strategy: Strategy,
    /// What is kept to go on from.
    pub checkpoint: Checkpoint,
    /// What is told meanwhile.
    pub log: Log,
    /// What is shown at the end.
    pub sample: Sample,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            seed: 1,
            threads: 1,
            device: DeviceKind::Cpu,
            model: Model::default(),
            data: Data::default(),
            mesh: Degrees::default(),
            optimizer: Optimizer::default(),
            schedule: LrSchedule::default(),
            strategy: Strategy::default(),
            checkpoint: Checkpoint::default(),
            log: Log::default(),
            sample: Sample::default(),
        }
    }
}

impl Config {
    /// The defaults, changed by the file at `path`, then by `overrides` of the form `section.key=value`.
    ///
    /// # Errors
    /// Names file and line, or the override: an unknown key with the nearest that there is, a value of a wrong type,
    /// values that do not go together.
    pub fn load(path: Option<&Path>, overrides: &[String]) -> Result<Self> {
        let config = match path {
            Some(path) => read::file(path)?,
            None => Self::default(),
        };
        config.with_override(overrides)
    }

    /// As [`Config::load`], from the text of a file.
    ///
    /// # Errors
    /// Those of [`Config::load`].
    pub fn parse(text: &str, overrides: &[String]) -> Result<Self> {
        read::parse(text).map_err(Error::invalid)?.with_override(overrides)
    }

    fn with_override(self, overrides: &[String]) -> Result<Self> {
        let mut config = self;
        for change in overrides {
            config = read::with_override(&config, change)?;
        }
        config.check()?;
        Ok(config)
    }

    /// The text of a file that gives the same configuration: every key there is.
    ///
    /// # Errors
    /// [`Error::Illegal`] if a number is too large for TOML.
    pub fn to_toml(&self) -> Result<String> {
        toml::to_string(self).map_err(|error| Error::invalid(error.to_string()))
    }

    /// How the global batch is divided on `mesh`.
    ///
    /// # Errors
    /// [`Error::Illegal`] with the nearest numbers that go together.
    pub fn batch(&self, mesh: &Mesh) -> Result<BatchPlan> {
        let batch = BatchPlan::divide(self.data.global_batch, self.data.micro_batch, mesh.batch_data_size())?;
        batch.with_breadth_first(self.data.breadth_first)
    }

    /// What strategies go by.
    pub fn settings(&self) -> Settings {
        let rows = self.optimizer.kind == OptimizerKind::Muon;
        Settings { shard_by_rows: rows, ..self.strategy.settings(u64::from(self.seed)) }
    }

    /// The highest learning rate of the run: the configured one, scaled to the global batch.
    pub fn peak_rate(&self) -> f64 {
        let scale = self.schedule.lr_scale;
        self.optimizer.lr * scale.factor(self.data.global_batch, self.schedule.reference_batch)
    }

    /// Refuses values that no run can have. What depends on the number of ranks is refused by [`Mesh::new`] and
    /// [`Config::batch`].
    fn check(&self) -> Result<()> {
        self.schedule.check()?;
        let broken = crate::config::validate::constraints(self).into_iter().find(|&(holds, _)| !holds);
        broken.map_or(Ok(()), |(_, rule)| Err(Error::invalid(rule)))
    }
}

#[cfg(test)]
mod tests;
