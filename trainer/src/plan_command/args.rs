//! Command line arguments of a plan.

use crate::config::Config;
use crate::machine;
use crate::plan_command::{files, runs};
use std::path::PathBuf;
use unisono_nn::error::{Error, Result};
use unisono_parallel::experts::Experts;
use unisono_plan::GptShape;
use unisono_plan::cost::{BytesPerParam, Hardware, Link, ModelShape};
use unisono_plan::planner::{Candidate, PlanReport, published_model, published_names};

/// Model, hardware and batch of a plan.
#[derive(Clone, Debug, clap::Args)]
pub struct PlanArgs {
    /// Number of parameters, such as 7b or 350m, with the usual proportions unless set below; or
    /// llama2-7b, llama2-13b, llama2-70b, llama3-8b, llama3-70b, llama3-405b, mistral-7b,
    /// qwen2.5-7b, qwen3-8b, qwen3-32b, phi3-mini, mixtral-8x7b
    #[arg(long, default_value = "7b", conflicts_with_all = ["config", "overrides"])]
    model: String,
    /// TOML file with the configuration of a run, to be planned instead of --model
    #[arg(short, long)]
    config: Option<PathBuf>,
    /// Changes to the configuration, or to the default one; planned instead of --model
    #[arg(value_name = "SECTION.KEY=VALUE")]
    overrides: Vec<String>,
    /// Number of blocks
    #[arg(long, conflicts_with_all = ["config", "overrides"])]
    layers: Option<usize>,
    /// Number of features per token
    #[arg(long, conflicts_with_all = ["config", "overrides"])]
    width: Option<usize>,
    /// Number of attention heads
    #[arg(long, conflicts_with_all = ["config", "overrides"])]
    heads: Option<usize>,
    /// Sequence length in tokens
    #[arg(long, conflicts_with_all = ["config", "overrides"])]
    sequence: Option<usize>,
    /// Vocabulary size
    #[arg(long, conflicts_with_all = ["config", "overrides"])]
    vocabulary: Option<usize>,
    /// Number of experts per block
    #[arg(long, conflicts_with_all = ["config", "overrides"])]
    experts: Option<usize>,
    /// Number of experts that each token uses [default: 2]
    #[arg(long, requires = "experts")]
    per_token: Option<usize>,
    /// Number of parameters used per token, with experts
    #[arg(long, conflicts_with_all = ["config", "overrides"])]
    active: Option<String>,
    /// Number of neighboring data ranks that divide state, such as those of a host [default: all
    /// data ranks]
    #[arg(long, conflicts_with_all = ["config", "overrides"])]
    shard_ranks: Option<usize>,
    /// Recompute activations in backward
    #[arg(long)]
    activation_checkpointing: bool,
    /// Tokens per optimizer step [default: 4194304, or the batch of the configuration]
    #[arg(long)]
    tokens: Option<usize>,
    /// Tokens of the whole run, such as 2t, for its days [default: 20 per parameter]
    #[arg(long)]
    train_tokens: Option<String>,
    /// Bytes of each of Adam's moments: 4 or 2
    #[arg(long, default_value_t = 4, conflicts_with_all = ["config", "overrides"])]
    moment_bytes: u8,
    /// Accumulate gradients in 32 bits in addition to the gradients
    #[arg(long, conflicts_with_all = ["config", "overrides"])]
    fp32_grad_accum: bool,
    /// Bucket size of gradients, in MiB [default: 25, or that of the configuration]
    #[arg(long)]
    bucket_mb: Option<f64>,
    /// Hardware: v100-32, a100-40, a100-80, h100-80, h200-141, b200-180, mi300x-192, or here (this
    /// machine, measured)
    #[arg(long, default_value = "a100-80")]
    hardware: String,
    /// Number of ranks
    #[arg(short = 'n', long, default_value_t = 64, conflicts_with_all = ["hosts", "topology"])]
    ranks: usize,
    /// Number of hosts, instead of ranks
    #[arg(long, conflicts_with = "topology")]
    hosts: Option<usize>,
    /// Number of ranks per host [default: 8]
    #[arg(long, conflicts_with = "topology")]
    per_host: Option<usize>,
    /// TOML file with `hosts`, `ranks_per_host`, `domains_per_host`, and the links `domain`, `host`
    /// and `across` with `bandwidth` in GB/s and `latency` in microseconds
    #[arg(long, value_name = "FILE")]
    topology: Option<PathBuf>,
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
    /// Draw the predicted step time of the meshes into this file
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Write the configuration with the chosen mesh, strategy and batch, for `unisono-train train`;
    /// needs a configuration
    #[arg(long, value_name = "FILE.toml")]
    write: Option<PathBuf>,
    /// Run this many steps of each of the ten best meshes on threads of this process, and compare;
    /// needs a configuration
    #[arg(long, value_name = "STEPS")]
    measure: Option<usize>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

impl PlanArgs {
    /// Computes the plan, and writes the files that are asked for.
    ///
    /// # Errors
    /// Fails for invalid numbers, for a model that no strategy fits into memory, and for files that
    /// cannot be read or written.
    pub fn report(&self) -> Result<PlanReport> {
        let config = self.configuration()?;
        let shape = self.shape(config.as_ref())?;
        let (mut hardware, error) = self.hardware()?;
        if let ("here", None, Some(config)) = (self.hardware.as_str(), self.teraflops, &config) {
            runs::measure_rate(config, &mut hardware)?;
        }
        let batch = config.as_ref().map(|config| config.data.global_batch * config.model.context);
        let tokens = self.tokens.or(batch).unwrap_or(usual_tokens(shape.gpt.context));
        if !(1..=TOKENS_MAX).contains(&tokens) {
            return Err(Error::invalid(format!("--tokens {tokens}: it is from 1 to {TOKENS_MAX}")));
        }
        let bucket =
            self.bucket_mb.or(config.as_ref().map(|config| config.strategy.bucket_mb)).unwrap_or(25.0);
        let bucket = positive("--bucket-mb", bucket)? * f64::from(1 << 20);
        let mut answer = match &config {
            Some(config) => {
                let memory_of = |candidate: &Candidate| runs::exact_memory(candidate, config);
                PlanReport::among_runs(shape, hardware, tokens, bucket, memory_of)?
            }
            None if self.tokens.is_some() => PlanReport::new(shape, hardware, tokens, bucket)?,
            None => with_equal_parts(shape, hardware, tokens, bucket)?,
        };
        answer.fit_error = error;
        if let Some(tokens) = self.train_tokens.as_deref().map(parse_number).transpose()? {
            answer.set_train_tokens(tokens);
        }
        if let Some(config) = &config {
            answer.compare_configured(config.strategy.kind, config.mesh);
        }
        self.write_files(config.as_ref(), &mut answer)?;
        Ok(answer)
    }

    /// Writes the files that are asked for, and measures.
    fn write_files(&self, config: Option<&Config>, answer: &mut PlanReport) -> Result<()> {
        if let Some(path) = &self.plot {
            std::fs::write(path, answer.svg()).map_err(|error| Error::file(path, error))?;
        }
        let needs_config =
            |flag: &str| Error::invalid(format!("{flag} is for a configuration: give --config or KEY=VALUE"));
        if let Some(path) = &self.write {
            let config = config.ok_or_else(|| needs_config("--write"))?;
            let chosen = answer.chosen().ok_or_else(|| Error::invalid(nothing_runs(answer)))?;
            runs::write(chosen, config, path)?;
        }
        if let Some(steps) = self.measure {
            let config = config.ok_or_else(|| needs_config("--measure"))?;
            let hosts = answer.hardware.hosts();
            if self.hardware == "here" && hosts > 1 {
                let what = format!("--measure with {hosts} hosts: it runs all ranks on this one");
                return Err(Error::invalid(what));
            }
            let steps = check_count("--measure", steps)?;
            answer.compare_measured(|candidate| runs::measure_candidate(candidate, config, steps))?;
        }
        Ok(())
    }

    /// Returns the configuration of the run, if one is given.
    fn configuration(&self) -> Result<Option<Config>> {
        let is_given = self.config.is_some() || !self.overrides.is_empty();
        is_given.then(|| Config::load(self.config.as_deref(), &self.overrides)).transpose()
    }

    fn shape(&self, config: Option<&Config>) -> Result<ModelShape> {
        let mut shape = match config {
            Some(config) => config.model_shape()?,
            None => self.usual_shape()?,
        };
        shape.gpt.activation_checkpointing |= self.activation_checkpointing;
        Ok(shape)
    }

    /// Returns the shape of a model of this size, with the usual proportions unless they are given.
    fn usual_shape(&self) -> Result<ModelShape> {
        let published = published_model(&self.model);
        let mut shape =
            published.map_or_else(|| parameters(&self.model).map(ModelShape::from_parameters), Ok)?;
        let usual = shape.gpt;
        let [vocabulary, sequence, width, heads, layers] = [
            (self.vocabulary, usual.vocabulary, "--vocabulary"),
            (self.sequence, usual.context, "--sequence"),
            (self.width, usual.width, "--width"),
            (self.heads, usual.heads, "--heads"),
            (self.layers, usual.layers, "--layers"),
        ]
        .map(|(given, usual, name)| check_count(name, given.unwrap_or(usual)));
        let (width, heads) = (width?, heads?);
        let kv_heads = if heads == usual.heads { usual.kv_heads } else { heads };
        if !width.is_multiple_of(heads) {
            return Err(Error::invalid(format!("--heads {heads}: they do not divide a width of {width}")));
        }
        let bytes = match self.moment_bytes {
            bytes @ (2 | 4) => BytesPerParam::mixed(bytes.into(), self.fp32_grad_accum),
            bytes => return Err(Error::invalid(format!("--moment-bytes {bytes}: it is 4 or 2"))),
        };
        let (vocabulary, context, layers) = (vocabulary?, sequence?, layers?);
        if self.layers.or(self.width).is_some() && self.experts.is_none() && shape.experts() == 1 {
            check_dimensions(shape.parameters, layers, width)?;
        }
        let shard_ranks = self.shard_ranks.map(|ranks| check_count("--shard-ranks", ranks)).transpose()?;
        shape.gpt = GptShape { vocabulary, context, width, heads, kv_heads, layers, ..shape.gpt };
        (shape.bytes, shape.shard_ranks) = (bytes, shard_ranks.unwrap_or(0));
        self.with_experts(shape)
    }

    /// Adds experts, if they are given.
    fn with_experts(&self, shape: ModelShape) -> Result<ModelShape> {
        let active = self.active.as_deref().map(parse_number).transpose()?;
        let active = active.map(|active| check_active(active, &shape, self.experts)).transpose()?;
        let Some(experts) = self.experts else { return Ok(shape) };
        let experts = check_count("--experts", experts)?;
        if experts > Experts::MAX_COUNT {
            return Err(Error::invalid(format!("--experts {experts}: it is at most {}", Experts::MAX_COUNT)));
        }
        let per_token = self.per_token.unwrap_or(2.min(experts));
        if !(1..=experts).contains(&per_token) {
            return Err(Error::invalid(format!("--per-token {per_token}: there are {experts} experts")));
        }
        let shape = shape.with_experts(experts, per_token, active);
        let (total, of_experts) = (shape.parameters, shape.expert_parameters);
        match of_experts > total {
            true => Err(Error::invalid(format!(
                "--active {}: {experts} experts of which {per_token} are used would have {of_experts:.3e} of {total:.3e} parameters",
                shape.active
            ))),
            false => Ok(shape),
        }
    }

    /// Returns the hardware, and the error of the fitted link.
    fn hardware(&self) -> Result<(Hardware, Option<f64>)> {
        let topology = self.topology.as_deref().map(files::topology).transpose()?;
        let hosts = self.hosts.map(|hosts| check_count("--hosts", hosts)).transpose()?;
        let ranks = match (&topology, hosts) {
            (Some(topology), _) => topology.ranks(),
            (None, Some(hosts)) => hosts * check_count("--per-host", self.per_host.unwrap_or(8))?,
            (None, None) => self.ranks,
        };
        let ranks = check_count("--ranks", ranks)?;
        let per_host = match (&topology, self.per_host) {
            (Some(topology), _) => Some(topology.ranks_per_host()),
            (None, Some(count)) => Some(check_count("--per-host", count)?),
            (None, None) => hosts.map(|_| 8),
        };
        let mut hardware = machine::hardware(&self.hardware, ranks, per_host)?;
        if let Some(topology) = &topology {
            topology.apply(&mut hardware);
        }
        if let Some(gigabytes) = self.within {
            let beta = positive("--within", gigabytes)? * 1e9;
            hardware.set_intra_host(Link { beta, ..hardware.intra_host });
        }
        let given = [
            (&mut hardware.memory, self.memory, "--memory", 1e9),
            (&mut hardware.inter_host.beta, self.across, "--across", 1e9),
            (&mut hardware.inter_host.alpha, self.latency, "--latency", 1e-6),
            (&mut hardware.flops, self.teraflops, "--teraflops", 1e12),
        ];
        for (number, given, name, unit) in given {
            if let Some(given) = given {
                *number = positive(name, given)? * unit;
            }
        }
        if topology.is_none() {
            hardware.intra_domain = hardware.intra_host;
        }
        let error = self.fit.as_deref().map(|path| files::fit(&mut hardware, path)).transpose()?;
        Ok((hardware, error))
    }
}

/// Parameters of the smallest model with the usual proportions: one block of width 128.
const PARAMETERS_MIN: f64 = 12.0 * 128.0 * 128.0;

fn parameters(model: &str) -> Result<f64> {
    let names = published_names();
    let wrong =
        |what: String| Error::invalid(format!("--model {model}: {what}; models with a name are {names}"));
    let count = parse_number(model).map_err(|_| {
        wrong("no number of parameters, such as 7b or 350m, and no model of this name".to_owned())
    })?;
    match count >= PARAMETERS_MIN {
        true => Ok(count),
        false => Err(wrong(format!("usual proportions begin at {PARAMETERS_MIN} parameters"))),
    }
}

/// Checks the number of parameters used per token.
fn check_active(active: f64, shape: &ModelShape, experts: Option<usize>) -> Result<f64> {
    let total = shape.parameters;
    match active {
        _ if active > total => {
            Err(Error::invalid(format!("--active {active}: there are {total} parameters in all")))
        }
        _ if experts.is_none_or(|experts| experts < 2) => {
            Err(Error::invalid(format!("--active {active}: without --experts, all {total} are")))
        }
        _ => Ok(active),
    }
}

fn positive(name: &str, value: f64) -> Result<f64> {
    let is_one = (LEAST..=MOST).contains(&value);
    let what = || Error::invalid(format!("{name} {value:e}: it is above 0, from {LEAST:e} to {MOST:e}"));
    if is_one { Ok(value) } else { Err(what()) }
}

/// Limits on numbers of any unit, beyond any real hardware.
const LEAST: f64 = 1e-12;
const MOST: f64 = 1e12;

/// Checks that blocks of these dimensions have about so many parameters.
fn check_dimensions(parameters: f64, layers: usize, width: usize) -> Result<()> {
    let made = 12.0 * layers as f64 * (width as f64).powi(2);
    if (0.5..=2.0).contains(&(made / parameters)) {
        return Ok(());
    }
    let what = format!("--layers {layers} of --width {width} make about {made:.2e} parameters");
    Err(Error::invalid(format!("{what}, and --model has {parameters:.2e}: give --model {made:.0}")))
}

/// Returns the tokens of a step that learning asks for: about 4 million, in whole sequences.
fn usual_tokens(sequence: usize) -> usize {
    (4_194_304 / sequence).max(1) * sequence
}

/// Plans a step of `tokens`, or of a few more where no mesh could divide them equally.
fn with_equal_parts(shape: ModelShape, hardware: Hardware, tokens: usize, bucket: f64) -> Result<PlanReport> {
    let answer = PlanReport::new(shape.clone(), hardware.clone(), tokens, bucket)?;
    if !answer.search.fitting.is_empty() {
        return Ok(answer);
    }
    let sequence = shape.gpt.context;
    let more = (tokens / sequence).next_multiple_of(hardware.ranks) * sequence;
    let mut answer = PlanReport::new(shape, hardware, more, bucket)?;
    answer.warnings.push(format!(
        "a step has {more} tokens, because ranks could not have equal parts of {tokens}; --tokens sets them"
    ));
    Ok(answer)
}

/// Says why no mesh of a plan can be written.
fn nothing_runs(answer: &PlanReport) -> String {
    let why = match (&answer.recipe, &answer.search.refusal) {
        (Err(what), _) => what.clone(),
        (_, Some(what)) => format!("the first of {} that were refused: {what}", answer.search.refused),
        _ => "no mesh divides the batch".to_owned(),
    };
    format!("--write: no mesh runs with this configuration and batch: {why}")
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

/// Parses a number with a suffix k, m, b, t or K, M, G, T for thousands, millions, billions and
/// trillions.
///
/// # Errors
/// [`Error::Invalid`] if it is no number above 0 and below 10^16.
pub(super) fn parse_number(text: &str) -> Result<f64> {
    let is_plain = text.parse::<f64>().is_ok();
    let end = text.find(|c: char| c.is_ascii_alphabetic()).filter(|_| !is_plain);
    let (digits, unit) = text.split_at(end.unwrap_or(text.len()));
    let power = match unit.to_ascii_lowercase().as_str() {
        "" => Some(0),
        "k" => Some(3),
        "m" => Some(6),
        "b" | "g" => Some(9),
        "t" => Some(12),
        _ => None,
    };
    let value = digits.parse::<f64>().ok().zip(power).map(|(value, power)| value * 10f64.powi(power));
    value.filter(|value| *value > 0.0 && *value < 1e16).ok_or_else(|| {
        Error::invalid(format!("`{text}` is not a number above 0 and below 10^16, such as 4096, 7b or 4.2M"))
    })
}
