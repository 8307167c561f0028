//! Command `unisono-train`: trains a configured model on threads or processes, and generates text
//! with it.

use clap::{Parser, Subcommand};
use std::fmt::Display;
use std::io::{ErrorKind, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use unisono_trainer::config::{Config, ModelKind};
use unisono_trainer::data::{TokenizeOptions, Tokenizer};
use unisono_trainer::flat::Dtype;
use unisono_trainer::models::hugging_face::FileOptions;
use unisono_trainer::pipeline::PipelineArgs;
use unisono_trainer::planner::{PlanArgs, PlanReport};
use unisono_trainer::train::{self, DryRun, TrainResult};
use unisono_trainer::{Error, Result};

#[derive(Parser)]
#[command(name = "unisono-train", version, about = "Training over unisono's collectives")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Train a model. Without a configuration: a small GPT, on the text files below this folder
    Train(TrainArguments),
    /// Generate text with a trained model
    Generate(GenerateArguments),
    /// Make token files from text with a tokenizer
    Prepare(PrepareArguments),
    /// Write the model of a checkpoint in Hugging Face's layout
    Export(ExportArguments),
    /// Choose a strategy for a model and hardware, and predict memory, traffic and step time
    Plan(PlanArgs),
    /// Print the formulas behind a plan, with its numbers
    Explain(ExplainArguments),
}

#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
struct ExplainArguments {
    #[command(flatten)]
    plan: PlanArgs,
    #[command(subcommand)]
    topic: Option<Topic>,
}

#[derive(Subcommand)]
enum Topic {
    /// Print the order of work in a pipeline, its idle time, activations and messages
    Pipeline(PipelineArgs),
}

#[derive(clap::Args)]
struct TrainArguments {
    /// TOML file with the configuration; defaults apply to missing keys
    #[arg(short, long)]
    config: Option<PathBuf>,
    /// Ranks, as threads of this process [default: 2]. Under a launcher (RANK, WORLD_SIZE) each
    /// process is one rank
    #[arg(short = 'n', long)]
    ranks: Option<usize>,
    /// Print the whole configuration and exit
    #[arg(long)]
    print_config: bool,
    /// Print memory, traffic and computation of each of RANKS ranks, and exit
    #[arg(long, value_name = "RANKS")]
    dry_run: Option<usize>,
    /// Changes to the configuration
    #[arg(value_name = "SECTION.KEY=VALUE")]
    overrides: Vec<String>,
}

#[derive(clap::Args)]
struct GenerateArguments {
    /// Folder of a checkpoint, or of several checkpoints to use the last one
    #[arg(long)]
    checkpoint: PathBuf,
    /// Start of the text
    #[arg(long)]
    prompt: String,
    /// Number of tokens [default: that of the saved configuration, or 256]
    #[arg(long)]
    tokens: Option<usize>,
    /// Sampling temperature; 0 always chooses the most probable token
    #[arg(long)]
    temperature: Option<f64>,
    /// Number of most probable tokens to choose from; 0 allows all
    #[arg(long)]
    top_k: Option<usize>,
    /// Choose from the fewest most probable tokens with this probability in all
    #[arg(long)]
    top_p: Option<f64>,
    /// Seed of the choices
    #[arg(long)]
    seed: Option<u32>,
    /// Changes to the saved configuration, for example to section `sample`
    #[arg(value_name = "SECTION.KEY=VALUE")]
    overrides: Vec<String>,
}

#[derive(clap::Args)]
struct PrepareArguments {
    /// Tokenizer in Hugging Face's format
    #[arg(long, value_name = "tokenizer.json")]
    tokenizer: PathBuf,
    /// Text file, or folder with text files
    #[arg(long)]
    text: PathBuf,
    /// File for training tokens: .bin or .u16 for two bytes per token, .u32 for four
    #[arg(long)]
    out: PathBuf,
    /// Fraction at the end of each document for validation
    #[arg(long, default_value_t = 0.1, value_name = "FRACTION")]
    validation: f64,
    /// File for validation tokens [default: NAME-validation beside the training tokens]
    #[arg(long)]
    validation_out: Option<PathBuf>,
    /// Extensions of the text files to read
    #[arg(long, value_delimiter = ',', default_values_t = ["md", "rs", "txt"].map(str::to_owned))]
    extensions: Vec<String>,
    /// Token after each document [default: the tokenizer's, if it has a usual name]
    #[arg(long, value_name = "TOKEN")]
    end_of_text: Option<String>,
}

#[derive(clap::Args)]
struct ExportArguments {
    /// Folder of a checkpoint, or of several checkpoints to use the last one
    #[arg(long)]
    checkpoint: PathBuf,
    /// Folder for config.json and model.safetensors
    #[arg(long)]
    to: PathBuf,
    /// Write weights in 16 bits (bfloat16)
    #[arg(long)]
    bf16: bool,
    /// Size in MB of tensors after which another file begins
    #[arg(long, default_value_t = 5000.0, value_name = "MB")]
    max_file_mb: f64,
}

/// Prints warnings on standard error. `UNISONO_LOG` selects other levels.
fn show_warnings() {
    use tracing_subscriber::EnvFilter;
    let filter = EnvFilter::try_from_env("UNISONO_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
}

fn main() -> ExitCode {
    show_warnings();
    let ended = match Arguments::parse().command {
        Command::Train(arguments) => train(&arguments),
        Command::Generate(arguments) => generate(&arguments),
        Command::Prepare(arguments) => prepare(&arguments),
        Command::Export(arguments) => export(&arguments),
        Command::Plan(question) => print_plan(&question, PlanReport::plan),
        Command::Explain(ExplainArguments { topic: Some(Topic::Pipeline(question)), .. }) => {
            question.explain().and_then(print)
        }
        Command::Explain(question) => print_plan(&question.plan, PlanReport::explain),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // A closed standard error is no further problem.
            let _ = writeln!(std::io::stderr(), "unisono-train: {error}");
            ExitCode::FAILURE
        }
    }
}

fn train(arguments: &TrainArguments) -> Result<()> {
    let config = Config::load(arguments.config.as_deref(), &arguments.overrides)?;
    if arguments.print_config {
        return print(config.to_toml()?);
    }
    if let Some(world) = arguments.dry_run {
        return print(DryRun::new(&config, world)?.report());
    }
    let outcome = match (std::env::var_os("RANK"), arguments.ranks) {
        (None, ranks) => Some(train::train_on_threads(ranks.unwrap_or(2), &config)?),
        (Some(_), None) => train::train_from_env(&config)?,
        (Some(_), Some(_)) => {
            let what = "-n makes threads, and RANK in the environment says that ranks are processes";
            return Err(Error::invalid(format!("{what}: leave one of them out")));
        }
    };
    outcome.map_or(Ok(()), |outcome| print(summary(&config, &outcome)))
}

/// Formats the result of a run.
fn summary(config: &Config, outcome: &TrainResult) -> String {
    let mut lines = Vec::new();
    if let (Some(first), Some(last)) = (outcome.losses.first(), outcome.losses.last()) {
        lines.push(format!("{} steps, loss {first:.4} at first, {last:.4} at last", outcome.steps));
    }
    if let Some(loss) = outcome.validation {
        let perplexity = format!(", perplexity {:.2}", loss.exp());
        let perplexity = if config.model.kind == ModelKind::Gpt { perplexity } else { String::new() };
        lines.push(format!("loss {loss:.4}{perplexity} on what was held back"));
    }
    lines.push(format!("weights {:016x}\n\n{}", outcome.fingerprint, outcome.memory));
    if let Some(sample) = &outcome.sample {
        lines.push(format!("{}{sample}", config.sample.prompt));
    }
    lines.join("\n") + "\n"
}

/// Prints to standard output. A closed pipe is not an error.
fn print(text: impl Display) -> Result<()> {
    let mut output = std::io::stdout().lock();
    match write!(output, "{text}").and_then(|()| output.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Error::file("standard output", error)),
        _ => Ok(()),
    }
}

fn generate(arguments: &GenerateArguments) -> Result<()> {
    let GenerateArguments { checkpoint, prompt, overrides, .. } = arguments;
    let flags = [
        ("sample.tokens", arguments.tokens.map(|tokens| tokens.to_string())),
        ("sample.temperature", arguments.temperature.map(|temperature| temperature.to_string())),
        ("sample.top_k", arguments.top_k.map(|count| count.to_string())),
        ("sample.top_p", arguments.top_p.map(|share| share.to_string())),
        ("seed", arguments.seed.map(|seed| seed.to_string())),
    ];
    let flags = flags.into_iter().filter_map(|(key, value)| value.map(|value| format!("{key}={value}")));
    let overrides: Vec<String> = overrides.iter().cloned().chain(flags).collect();
    let mut is_first = true;
    let mut show = |part: &str| {
        let start = if std::mem::take(&mut is_first) { prompt.as_str() } else { "" };
        print(format!("{start}{part}"))
    };
    train::generate(checkpoint, prompt, &overrides, &mut show)?;
    let start = if is_first { prompt.as_str() } else { "" };
    print(format!("{start}\n"))
}

fn prepare(arguments: &PrepareArguments) -> Result<()> {
    let PrepareArguments { tokenizer: path, text, out, validation, extensions, .. } = arguments;
    let mut tokenizer = Tokenizer::open(path)?;
    if let Some(token) = &arguments.end_of_text {
        tokenizer = tokenizer.with_end_of_text(token)?;
    }
    if !(0.0..1.0).contains(validation) {
        return Err(Error::invalid(format!("--validation {validation} is not a fraction below 1")));
    }
    let validation_out =
        arguments.validation_out.clone().unwrap_or_else(|| TokenizeOptions::validation_beside(out));
    let options = TokenizeOptions {
        text: text.clone(),
        extensions: extensions.clone(),
        validation: *validation,
        out: out.clone(),
        validation_out,
    };
    let found = options.run(&tokenizer)?;
    let held_back = options.validation_out.display();
    let [mut numbers, mut keys] = [String::new(), String::new()];
    if options.validation > 0.0 {
        numbers = format!(", {} for validation in {held_back}", found.validation);
        keys = format!(" data.validation_path={held_back}");
    }
    let (out, path, vocabulary) = (out.display(), path.display(), tokenizer.vocabulary());
    print(format!(
        "{} documents: {} training tokens in {out}{numbers}\n\
         data.kind=tokens data.path={out}{keys} data.vocabulary={vocabulary} data.tokenizer={path}\n",
        found.documents, found.training
    ))
}

fn export(arguments: &ExportArguments) -> Result<()> {
    let dtype = if arguments.bf16 { Dtype::Bf16 } else { Dtype::F32 };
    let options = FileOptions { dtype, max_bytes: (arguments.max_file_mb * 1e6) as usize };
    train::export(&arguments.checkpoint, &arguments.to, options)
}

fn print_plan(question: &PlanArgs, text: fn(&PlanReport) -> String) -> Result<()> {
    let answer = question.report()?;
    match question.json {
        true => print(answer.json()? + "\n"),
        false => print(text(&answer)),
    }
}
