//! Command line arguments of a plan.

use crate::config::Config;
use crate::error::{Error, Result};
use crate::planner::hardware::Hardware;
use crate::planner::model_dims::{BytesPerParam, ModelDims, parse_number};
use crate::planner::report::PlanReport;
use crate::planner::warnings;
use std::path::PathBuf;

/// Model, hardware and batch of a plan.
#[derive(Clone, Debug, clap::Args)]
pub struct PlanArgs {
    /// Number of parameters, such as 7b or 350m, with the usual proportions unless set below
    #[arg(long, default_value = "7b", conflicts_with_all = ["config", "overrides"])]
    model: String,
    /// TOML file with the configuration of a run to plan, instead of --model
    #[arg(short, long)]
    config: Option<PathBuf>,
    /// Changes to the configuration
    #[arg(value_name = "SECTION.KEY=VALUE")]
    overrides: Vec<String>,
    /// Number of blocks
    #[arg(long)]
    layers: Option<usize>,
    /// Number of features per token
    #[arg(long)]
    width: Option<usize>,
    /// Number of attention heads
    #[arg(long)]
    heads: Option<usize>,
    /// Sequence length in tokens
    #[arg(long)]
    sequence: Option<usize>,
    /// Vocabulary size
    #[arg(long)]
    vocabulary: Option<usize>,
    /// Number of experts per block
    #[arg(long)]
    experts: Option<usize>,
    /// Number of parameters used per token, with experts
    #[arg(long)]
    active: Option<String>,
    /// Recompute activations in backward
    #[arg(long)]
    activation_checkpointing: bool,
    /// Tokens per optimizer step [default: 4194304, or the batch of the configuration]
    #[arg(long)]
    tokens: Option<usize>,
    /// Bytes of each of Adam's moments: 4 or 2
    #[arg(long, default_value_t = 4, conflicts_with_all = ["config", "overrides"])]
    moment_bytes: u8,
    /// Accumulate gradients in 32 bits in addition to the gradients
    #[arg(long, conflicts_with_all = ["config", "overrides"])]
    fp32_grad_accum: bool,
    /// Bucket size of gradients, in MiB [default: 25, or that of the configuration]
    #[arg(long)]
    bucket_mb: Option<f64>,
    /// Hardware: v100-32, a100-40, a100-80, h100-80, or here (this machine, measured)
    #[arg(long, default_value = "a100-80")]
    hardware: String,
    /// Number of ranks
    #[arg(short = 'n', long, default_value_t = 64)]
    ranks: usize,
    /// Number of ranks per host
    #[arg(long)]
    per_host: Option<usize>,
    /// Memory of each rank, in GB
    #[arg(long)]
    memory: Option<f64>,
    /// Bandwidth of a rank within its host, in GB/s each way
    #[arg(long)]
    within: Option<f64>,
    /// Bandwidth of a rank to other hosts, in GB/s each way
    #[arg(long)]
    across: Option<f64>,
    /// Latency of a message to other hosts, in microseconds
    #[arg(long)]
    latency: Option<f64>,
    /// Floating-point operations per second that a rank reaches, in 10^12
    #[arg(long)]
    teraflops: Option<f64>,
    /// Times measured by `unisono perf all_reduce --algo ring -J FILE`, to fit a link to, or lines
    /// of `ranks,bytes,microseconds`
    #[arg(long, value_name = "FILE")]
    fit: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

impl PlanArgs {
    /// Computes the plan.
    ///
    /// # Errors
    /// Fails for invalid numbers, and for a model that no strategy fits into memory.
    pub fn report(&self) -> Result<PlanReport> {
        let config = self.configuration()?;
        let (sizes, bytes) = (self.dims(config.as_ref())?, self.bytes(config.as_ref())?);
        let (hardware, error) = self.hardware()?;
        let batch = config.as_ref().map(|config| config.data.global_batch * config.model.context);
        let tokens = self.tokens.or(batch).unwrap_or(4_194_304);
        if !(1..=TOKENS_MAX).contains(&tokens) {
            return Err(Error::invalid(format!("--tokens {tokens}: it is from 1 to {TOKENS_MAX}")));
        }
        let bucket =
            self.bucket_mb.or(config.as_ref().map(|config| config.strategy.bucket_mb)).unwrap_or(25.0);
        let bucket = positive("--bucket-mb", bucket)? * f64::from(1 << 20);
        let mut answer = PlanReport::new(sizes, bytes, hardware, tokens, bucket)?;
        answer.fit_error = error;
        if let Some(config) = &config {
            answer.warnings.extend(warnings::for_config(
                config,
                &answer.hardware,
                &answer.decision.parallel,
            )?);
        }
        Ok(answer)
    }

    /// Returns the configuration of the run, if one is given.
    fn configuration(&self) -> Result<Option<Config>> {
        let is_given = self.config.is_some() || !self.overrides.is_empty();
        is_given.then(|| Config::load(self.config.as_deref(), &self.overrides)).transpose()
    }

    fn dims(&self, config: Option<&Config>) -> Result<ModelDims> {
        let mut sizes = match config {
            Some(config) => ModelDims::from_config(config)?,
            None => ModelDims::from_parameters(parameters(&self.model)?),
        };
        let given = [
            (&mut sizes.layers, self.layers, "--layers"),
            (&mut sizes.width, self.width, "--width"),
            (&mut sizes.heads, self.heads, "--heads"),
            (&mut sizes.sequence, self.sequence, "--sequence"),
            (&mut sizes.vocabulary, self.vocabulary, "--vocabulary"),
            (&mut sizes.experts, self.experts, "--experts"),
        ];
        for (size, given, name) in given {
            *size = check_count(name, given.unwrap_or(*size))?;
        }
        if let Some(active) = &self.active {
            sizes.active = parse_number(active)?;
        }
        sizes.activation_checkpointing |= self.activation_checkpointing;
        sizes.check()?;
        Ok(sizes)
    }

    fn bytes(&self, config: Option<&Config>) -> Result<BytesPerParam> {
        match (config, self.moment_bytes) {
            (Some(config), _) => Ok(BytesPerParam::from_config(config)),
            (None, 2 | 4) => Ok(BytesPerParam::mixed(self.moment_bytes.into(), self.fp32_grad_accum)),
            (None, bytes) => Err(Error::invalid(format!("--moment-bytes {bytes}: it is 4 or 2"))),
        }
    }

    /// Returns the hardware, and the error of the fitted link.
    fn hardware(&self) -> Result<(Hardware, Option<f64>)> {
        let mut hardware = Hardware::named(&self.hardware, check_count("--ranks", self.ranks)?)?;
        hardware.per_host = check_count("--per-host", self.per_host.unwrap_or(hardware.per_host))?;
        let given = [
            (&mut hardware.memory, self.memory, "--memory", 1e9),
            (&mut hardware.intra_host.beta, self.within, "--within", 1e9),
            (&mut hardware.inter_host.beta, self.across, "--across", 1e9),
            (&mut hardware.inter_host.alpha, self.latency, "--latency", 1e-6),
            (&mut hardware.flops, self.teraflops, "--teraflops", 1e12),
        ];
        for (number, given, name, unit) in given {
            if let Some(given) = given {
                *number = positive(name, given)? * unit;
            }
        }
        let error = self.fit.as_deref().map(|path| hardware.fit(path)).transpose()?;
        Ok((hardware, error))
    }
}

/// Parameters of the smallest model with the usual proportions: one block of width 128.
const PARAMETERS_MIN: f64 = 12.0 * 128.0 * 128.0;

fn parameters(model: &str) -> Result<f64> {
    let count = parse_number(model)?;
    let what = || format!("--model {model}: usual proportions begin at {PARAMETERS_MIN} parameters");
    if count >= PARAMETERS_MIN { Ok(count) } else { Err(Error::invalid(what())) }
}

fn positive(name: &str, value: f64) -> Result<f64> {
    let is_one = value.is_finite() && value > 0.0;
    if is_one { Ok(value) } else { Err(Error::invalid(format!("{name} {value}: it is above 0"))) }
}

/// Limit on counts beyond any real model, whose products do not overflow.
const MAX_COUNT: usize = 1 << 24;

/// Limit on tokens per step beyond any real run.
const TOKENS_MAX: usize = 1 << 56;

fn check_count(name: &str, value: usize) -> Result<usize> {
    let is_one = (1..=MAX_COUNT).contains(&value);
    if is_one {
        Ok(value)
    } else {
        Err(Error::invalid(format!("{name} {value}: it is from 1 to {MAX_COUNT}")))
    }
}
