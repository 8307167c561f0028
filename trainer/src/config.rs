//! Configuration of a run: one TOML file, overrides on the command line, and a default for every
//! key.

mod architecture;
mod build;
mod changes;
mod dependent_defaults;
mod docs;
#[cfg(any(test, feature = "fuzzing"))]
mod fuzzing;
mod padding;
mod plan_inputs;
mod read;
mod renamed_keys;
mod resume_invariants;
mod schema;
mod unit_kinds;
mod unused_keys;
mod validate;

pub use crate::config::build::new_model;
pub(crate) use crate::config::build::{new_model_with_experts, optimizer};
pub(crate) use crate::config::changes::ChangedKey;
pub use crate::config::docs::KeyDoc;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use crate::config::fuzzing::fuzz;
pub use crate::config::schema::{
    Checkpoint, Context, Data, DataKind, DeviceKind, ExpertBalance, Experts, FeedForward, Log, Model, Norm,
    Optimizer, OptimizerKind, Pipeline, Positions, RopeScalingKind, RouterScore, Sample, StageSplit,
    Strategy,
};

use crate::config::read::Given;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::Path;
use unisono_nn::error::{Error, Result};
use unisono_parallel::data_parallel::Settings;
use unisono_parallel::mesh::{Degrees, Mesh};
use unisono_parallel::optimizer::LrSchedule;
use unisono_plan::BatchPlan;

/// Settings of a run. The defaults train a GPT on the text files below the current folder, in under
/// a minute on two cores.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Config {
    /// Seed of weights, sample order and dropout.
    pub seed: u32,
    /// Number of threads per rank for a matrix product.
    pub threads: usize,
    /// Refuses to start if the ranks of a host need more memory, by formula, than it has available.
    pub check_memory: bool,
    /// Device of the computation. A GPU also keeps weights, gradients and optimizer state, and
    /// exchanges them, unless the state is offloaded to files.
    pub device: DeviceKind,
    /// Model to train.
    pub model: Model,
    /// Mixtures of experts in place of dense feed-forward parts.
    pub experts: Experts,
    /// Training data and batch sizes.
    pub data: Data,
    /// Degrees of parallelism.
    pub mesh: Degrees,
    /// Sharing of sequences: see `mesh.sequence_data`.
    pub context: Context,
    /// Work of pipeline stages, if there are several.
    pub pipeline: Pipeline,
    /// Optimizer.
    pub optimizer: Optimizer,
    /// Length of the run, and learning rate over time.
    pub schedule: LrSchedule,
    /// Distribution of work and state over data ranks.
    pub strategy: Strategy,
    /// Checkpoints.
    pub checkpoint: Checkpoint,
    /// Reports during the run.
    pub log: Log,
    /// Text generation at the end of the run.
    pub sample: Sample,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            seed: 1,
            threads: 1,
            check_memory: true,
            device: DeviceKind::Cpu,
            model: Model::default(),
            experts: Experts::default(),
            data: Data::default(),
            mesh: Degrees::default(),
            context: Context::default(),
            pipeline: Pipeline::default(),
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
    /// Loads the defaults, changed by the file at `path`, then by `overrides` of the form
    /// `section.key=value`.
    ///
    /// # Errors
    /// Names the file and line, or the override. An unknown key is answered with its present name
    /// or the nearest key. Values of a wrong type, and values that do not fit together, are errors
    /// too.
    pub fn load(path: Option<&Path>, overrides: &[String]) -> Result<Self> {
        Self::load_for_ranks(path, overrides, None)
    }

    /// Loads as [`Config::load`] does, for a run of `ranks` ranks if their number is known.
    /// Defaults follow this number, too.
    ///
    /// # Errors
    /// Fails as [`Config::load`] does. [`Config::batch`] and [`Mesh::new`] check the number.
    pub fn load_for_ranks(path: Option<&Path>, overrides: &[String], ranks: Option<usize>) -> Result<Self> {
        let given = match path {
            Some(path) => read::file(path)?,
            None => Given { config: Self::default(), keys: Vec::new() },
        };
        given.with_override(overrides, ranks)
    }

    /// Loads as [`Config::load`] does, from the text of a file.
    ///
    /// # Errors
    /// Fails as [`Config::load`] does.
    pub fn parse(text: &str, overrides: &[String]) -> Result<Self> {
        read::parse(text).map_err(Error::invalid)?.with_override(overrides, None)
    }

    /// Reads the configuration that a checkpoint contains. Nothing that it names is opened.
    ///
    /// # Errors
    /// Fails as [`Config::load`] does.
    pub fn from_checkpoint(text: &str) -> Result<Self> {
        let mut table: toml::Table = text.parse().map_err(|error| Error::invalid(format!("{error}")))?;
        // This key makes a configuration read the model of a folder. A saved one has its values.
        table.get_mut("model").and_then(|model| model.as_table_mut()?.remove("from"));
        Self::parse(&table.to_string(), &[])
    }

    /// Returns this configuration, changed by `overrides` of the form `section.key=value`. All of
    /// its keys count as given.
    ///
    /// # Errors
    /// Fails as [`Config::load`] does.
    pub fn with_override(self, overrides: &[String]) -> Result<Self> {
        let config = read::with_overrides(self, overrides)?;
        config.check()?;
        Ok(config)
    }

    /// Returns the text of a file with every key of this configuration.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a number is too large for TOML.
    pub fn to_toml(&self) -> Result<String> {
        toml::to_string(self).map_err(|error| Error::invalid(error.to_string()))
    }

    /// Returns the division of the global batch on `mesh`.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the nearest numbers that divide evenly, and the keys to set.
    pub fn batch(&self, mesh: &Mesh) -> Result<BatchPlan> {
        let Data { global_batch, micro_batch, .. } = self.data;
        let ranks = mesh.batch_data_size();
        let refused = |error: Error| {
            // No micro-batch helps if the ranks cannot divide the global batch.
            let or_micro = if global_batch.is_multiple_of(ranks) { " or data.micro_batch" } else { "" };
            Error::invalid(format!("{error}; set data.global_batch{or_micro}"))
        };
        let batch = BatchPlan::divide(global_batch, micro_batch, ranks).map_err(refused)?;
        let batch = BatchPlan { micro_sequences: self.data.micro_sequences, ..batch };
        batch.with_breadth_first(self.data.breadth_first)
    }

    /// Returns the settings of the strategy.
    pub fn settings(&self) -> Settings {
        let rows = self.optimizer.kind == OptimizerKind::Muon;
        let moment_dtype = self.optimizer.moment_dtype;
        Settings { shard_by_rows: rows, moment_dtype, ..self.strategy.settings(u64::from(self.seed)) }
    }

    /// Returns the peak learning rate: the configured rate, scaled to the global batch.
    pub fn peak_rate(&self) -> f64 {
        let scale = self.schedule.lr_scale;
        self.optimizer.lr * scale.factor(self.data.global_batch, self.schedule.reference_batch)
    }

    /// Rejects invalid values. [`Mesh::new`] and [`Config::batch`] check values that depend on the
    /// number of ranks.
    fn check(&self) -> Result<()> {
        self.schedule.check()?;
        let broken = crate::config::validate::constraints(self).into_iter().find(|&(holds, _)| !holds);
        broken.map_or(Ok(()), |(_, rule)| Err(Error::invalid(rule)))
    }
}

impl Given {
    /// Returns the configuration, changed by `overrides`, with the defaults that follow what is
    /// given.
    fn with_override(self, overrides: &[String], ranks: Option<usize>) -> Result<Config> {
        let mut config = read::with_overrides(self.config, overrides)?;
        let changed: Vec<_> = overrides.iter().filter_map(|change| change.split_once('=')).collect();
        // A section as a value gives all of its keys.
        let is_in = |given_key: &str, key: &str| {
            key.strip_prefix(given_key).is_some_and(|suffix| suffix.is_empty() || suffix.starts_with('.'))
        };
        let is_given = |key: &str| {
            self.keys.iter().any(|given_key| given_key == key)
                || changed.iter().any(|(given_key, _)| is_in(given_key.trim(), key))
        };
        config.follow_given_keys(is_given, ranks);
        // Defaults follow given keys before the check, which would refuse a default that
        // contradicts them.
        config.check()?;
        Ok(config)
    }
}

#[cfg(test)]
mod tests;
