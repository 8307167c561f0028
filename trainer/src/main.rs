//! Command `unisono-train`: trains a configured model on threads or processes, and generates text
//! with it.

use clap::{Parser, Subcommand};
use std::fmt::Display;
use std::io::{ErrorKind, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use unisono::bootstrap::RankInfo;
use unisono_nn::parameter::Dtype;
use unisono_nn::{Error, Result, counted};
use unisono_parallel::pipeline::PipelineArgs;
use unisono_plan::planner::PlanReport;
use unisono_trainer::config::{Config, KeyDoc};
use unisono_trainer::data::{Prepared, TokenizeOptions, Tokenizer};
use unisono_trainer::models::hugging_face::FileOptions;
use unisono_trainer::plan_command::PlanArgs;
use unisono_trainer::progress::WorkProgress;
use unisono_trainer::train::{self, DryRun, INTERRUPTED, Interrupt, Interruption, TrainResult};
use unisono_transports::text::printable;

#[derive(Parser)]
#[command(name = "unisono-train", version, about = "Training over unisono's collectives")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Train a model. Without a configuration: a small GPT, on the text files below this folder
    #[command(after_help = PROGRESS_HELP)]
    Train(TrainArguments),
    /// Generate text with a trained model
    Generate(GenerateArguments),
    /// Make token files from text with a tokenizer
    Prepare(PrepareArguments),
    /// Write the model of a checkpoint in Hugging Face's layout
    Export(ExportArguments),
    /// Print what configuration keys do, with their defaults and values
    Keys(KeysArguments),
    /// Choose a strategy for a model and hardware, and predict memory, traffic and step time
    Plan(PlanArgs),
    /// Print the formulas by which `plan` predicts, with the numbers of a plan
    Explain(ExplainArguments),
}

/// Meaning of the numbers that a run prints.
const PROGRESS_HELP: &str = "\
Progress lines:
  loss      mean over the samples of the step, before its update
  left      time to the last step, at the present pace
  tok/s     tokens per second of all ranks
  MFU       model FLOPs utilization: operations of the model per second, as a share of the peak that
            all ranks measured together in matrix products
  exposed   share of the step in which rank 0 waited for gradients and weights of other ranks; the
            rest of the communication was hidden behind computing
  norm, lr  norm of the gradient before clipping, and learning rate
  memory    weights, gradients and optimizer state of rank 0: counted / by formula
Perplexity is e to the validation loss: the number of tokens among which the model hesitates.
Ctrl-C ends after the step and saves a checkpoint; a second one ends at once.";

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
    /// Print the whole configuration with comments, and exit
    #[arg(long)]
    print_config: bool,
    /// Print memory, traffic and computation of each of RANKS ranks, and exit
    #[arg(long, value_name = "RANKS")]
    dry_run: Option<usize>,
    /// Number of ranks per host, to print the host of each rank too
    #[arg(long, value_name = "RANKS", requires = "dry_run")]
    per_host: Option<usize>,
    /// Changes to the configuration: `unisono-train keys` lists all keys, `--help KEY` explains one
    #[arg(value_name = "SECTION.KEY=VALUE")]
    overrides: Vec<String>,
}

#[derive(clap::Args)]
struct KeysArguments {
    /// Key such as `model.width`, or section such as `model`; all keys without it
    key: Option<String>,
}

#[derive(clap::Args)]
struct GenerateArguments {
    /// Folder of a checkpoint, or of several checkpoints to use the last one
    #[arg(long)]
    checkpoint: PathBuf,
    /// Start of the text
    #[arg(long)]
    prompt: String,
    /// Number of tokens [default: that of the configuration or of generation_config.json, or 256]
    #[arg(long)]
    tokens: Option<usize>,
    /// Sampling temperature; 0 always chooses the most probable token
    #[arg(long)]
    temperature: Option<f64>,
    /// Number of most probable tokens to choose from; 0 allows all
    #[arg(long)]
    top_k: Option<usize>,
    /// Choose from the most probable tokens whose probabilities first add up to this number
    #[arg(long)]
    top_p: Option<f64>,
    /// Divide the positive logits of tokens that the text has by this number, and multiply the
    /// negative ones by it
    #[arg(long)]
    repetition_penalty: Option<f64>,
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
    /// Token after each document [default: the one that the files beside tokenizer.json name]
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
    /// Changes to the saved configuration, for example data.tokenizer
    #[arg(value_name = "SECTION.KEY=VALUE")]
    overrides: Vec<String>,
}

/// Prints warnings on standard error. `UNISONO_LOG` selects other levels.
fn show_warnings() {
    use tracing_subscriber::filter::{LevelFilter, Targets};
    use tracing_subscriber::layer::SubscriberExt as _;
    use tracing_subscriber::util::SubscriberInitExt as _;
    let wanted = std::env::var("UNISONO_LOG").ok().and_then(|text| text.parse::<Targets>().ok());
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        // Reports of lines that cannot be written go to standard error, too, and panic.
        .log_internal_errors(false);
    let filter = wanted.unwrap_or_else(|| Targets::new().with_default(LevelFilter::WARN));
    tracing_subscriber::registry().with(lines).with(filter).init();
}

fn main() -> ExitCode {
    show_warnings();
    let (done, words) = (|()| ExitCode::SUCCESS, std::env::args_os().collect::<Vec<_>>());
    if let [_, command, help, key] = &words[..]
        && *command == "train"
        && *help == "--help"
    {
        return exit_code(keys(&key.to_string_lossy()).map(done));
    }
    exit_code(match Arguments::parse_from(&words).command {
        Command::Train(arguments) => train(&arguments),
        Command::Generate(arguments) => generate(&arguments).map(done),
        Command::Prepare(arguments) => prepare(&arguments).map(done),
        Command::Export(arguments) => export(&arguments).map(done),
        Command::Keys(KeysArguments { key }) => keys(key.as_deref().unwrap_or_default()).map(done),
        Command::Plan(question) => print_plan(&question, PlanReport::plan).map(done),
        Command::Explain(ExplainArguments { topic: Some(Topic::Pipeline(question)), .. }) => {
            question.explain().and_then(print).map(done)
        }
        Command::Explain(question) => print_plan(&question.plan, PlanReport::explain).map(done),
    })
}

/// Returns the exit status of a command, and prints its error.
fn exit_code(ended: Result<ExitCode>) -> ExitCode {
    match ended {
        Ok(code) => code,
        Err(error) => {
            tell(&format!("unisono-train: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn train(arguments: &TrainArguments) -> Result<ExitCode> {
    let ranks = number_of_ranks(arguments);
    let config = Config::load_for_ranks(arguments.config.as_deref(), &arguments.overrides, ranks)?;
    if arguments.print_config {
        return print(config.to_commented_toml()?).map(|()| ExitCode::SUCCESS);
    }
    if let Some(world) = arguments.dry_run {
        let run = DryRun::new(&config, world)?;
        let run = match arguments.per_host {
            Some(per_host) => run.on_hosts(per_host)?,
            None => run,
        };
        return print(run.report()).map(|()| ExitCode::SUCCESS);
    }
    if arguments.ranks == Some(0) {
        return Err(Error::invalid("-n 0: there is at least 1 rank"));
    }
    let (outcome, speaks) = match (RankInfo::is_in_env(), arguments.ranks) {
        (false, ranks) => {
            ranks.map_or_else(refuse_meeting_point, |_| Ok(()))?;
            let threads = ranks.unwrap_or(THREADS);
            (train::train_on_threads_until(threads, &config, &Interrupt::on_signals()?)?, true)
        }
        (true, None) => train::train_from_env(&config, &Interrupt::on_signals()?)?,
        (true, Some(_)) => {
            let what = "-n makes threads, and the launcher's environment says that ranks are processes";
            return Err(Error::invalid(format!("{what}: leave one of them out")));
        }
    };
    if speaks {
        print(summary(&config, &outcome))?;
    }
    match outcome.interruption {
        None => Ok(ExitCode::SUCCESS),
        Some(_) => Ok(ExitCode::from(INTERRUPTED)),
    }
}

/// Returns the number of ranks that the run has, or that is to be predicted. Returns `None` if a
/// launcher's environment does not say it.
fn number_of_ranks(arguments: &TrainArguments) -> Option<usize> {
    match (arguments.dry_run, RankInfo::is_in_env()) {
        (Some(ranks), _) => Some(ranks),
        (None, true) => RankInfo::size_in_env(),
        (None, false) => Some(arguments.ranks.unwrap_or(THREADS)),
    }
}

/// Number of ranks that are threads, if none is given.
const THREADS: usize = 2;

/// Refuses the meeting point of ranks that are processes, if the environment says of no rank that
/// it is this process. Each process would train on its own.
fn refuse_meeting_point() -> Result<()> {
    let names = ["UNISONO_ID", "MASTER_ADDR", "MASTER_PORT"];
    match names.into_iter().find(|name| std::env::var_os(name).is_some()) {
        Some(name) => Err(Error::invalid(format!(
            "{name} is set, where ranks that are processes meet, and RANK and WORLD_SIZE are not: set them, start \
             this command with `unisono run`, torchrun, mpirun or srun, or give -n RANKS for threads of this process"
        ))),
        None => Ok(()),
    }
}

/// Formats the result of a run.
fn summary(config: &Config, outcome: &TrainResult) -> String {
    let mut lines = Vec::new();
    match (outcome.losses.first(), outcome.losses.last()) {
        (Some(first), Some(last)) => {
            let steps = counted(outcome.steps as usize, "step");
            lines.push(format!("{steps}, loss {first:.4} at first, {last:.4} at last"));
        }
        _ => lines.push(format!("no step taken: step {} of {}", outcome.steps, config.schedule.steps)),
    }
    lines.extend(outcome.validation.map(train::validation_text));
    lines.push(format!("weights {:016x}\n", outcome.fingerprint));
    if !outcome.losses.is_empty() {
        lines.push(outcome.memory.to_string());
    }
    lines.extend(outcome.sample.clone());
    if let Some(Interruption { saved }) = &outcome.interruption {
        lines.push(interruption(outcome.steps, config.schedule.steps, saved.as_deref()));
    }
    lines.join("\n") + "\n"
}

/// Formats how to go on with an interrupted run.
fn interruption(taken: u64, steps: u64, saved: Option<&Path>) -> String {
    let how = match saved {
        Some(folder) => format!(
            "saved `{}`; the same command with checkpoint.resume=true goes on from there",
            folder.display()
        ),
        None => train::NOTHING_SAVED.to_owned(),
    };
    format!("interrupted after step {taken} of {steps}: {how}")
}

/// Prints to standard output. A closed pipe is not an error.
fn print(text: impl Display) -> Result<()> {
    let mut output = std::io::stdout().lock();
    match write!(output, "{text}").and_then(|()| output.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Error::file("standard output", error)),
        _ => Ok(()),
    }
}

/// Prints the documentation of keys.
fn keys(key: &str) -> Result<()> {
    let texts: Vec<_> = KeyDoc::find(key)?.iter().map(KeyDoc::to_string).collect();
    print(texts.join("\n"))
}

fn generate(arguments: &GenerateArguments) -> Result<()> {
    let GenerateArguments { checkpoint, prompt, overrides, .. } = arguments;
    let flags = [
        ("sample.tokens", arguments.tokens.map(|tokens| tokens.to_string())),
        ("sample.temperature", arguments.temperature.map(|temperature| temperature.to_string())),
        ("sample.top_k", arguments.top_k.map(|count| count.to_string())),
        ("sample.top_p", arguments.top_p.map(|share| share.to_string())),
        ("sample.repetition_penalty", arguments.repetition_penalty.map(|factor| factor.to_string())),
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
    let mut bar = WorkProgress::new("documents");
    let found = options.run_with_progress(&tokenizer, &mut |done, count| bar.show(done, count))?;
    // The bar is removed before lines are printed, because it would be drawn between them.
    drop(bar);
    prepared_notes(&options, &found).iter().for_each(|note| tell(note));
    let held_back = options.validation_out.display();
    let [mut numbers, mut keys] = [String::new(), String::new()];
    if options.validation > 0.0 {
        numbers = format!(", {} for validation in {held_back}", found.validation);
        keys = format!(" data.validation_path={held_back}");
    }
    let (out, path, vocabulary) = (out.display(), path.display(), tokenizer.vocabulary());
    let text_of = |token: u32| printable(&tokenizer.token_text(token).unwrap_or_default()).into_owned();
    let end = text_of(tokenizer.expect_end_of_text()?);
    let start = tokenizer.start_of_text().iter().map(|&token| format!("`{}` before and ", text_of(token)));
    print(format!(
        "{}: {} training tokens in {out}{numbers}; {}`{end}` after each document\n\
         data.kind=tokens data.path={out}{keys} data.vocabulary={vocabulary} data.tokenizer={path} {}\n",
        counted(found.documents, "document"),
        found.training,
        start.collect::<String>(),
        shell_word(&format!("data.end_of_text={end}"))
    ))
}

/// Returns a word of a command line as a shell reads it.
fn shell_word(word: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "_-.=/".contains(letter);
    match word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// Returns what `train` would do with prepared files that is perhaps not meant.
fn prepared_notes(options: &TokenizeOptions, found: &Prepared) -> Vec<String> {
    let context = Config::default().model.context;
    let files = [(&options.out, found.training), (&options.validation_out, found.validation)];
    let of_validation = options.validation > 0.0;
    let short = files.iter().take(if of_validation { 2 } else { 1 }).filter(|(_, count)| *count <= context);
    let short = short.map(|(path, count)| {
        format!(
            "{} has {}, and `train` refuses a file that does not have more than model.context, {context} by default: \
             set model.context to at most {}",
            path.display(),
            counted(*count, "token"),
            count.saturating_sub(1)
        )
    });
    let links = (found.skipped_links > 0)
        .then(|| format!("{} to folders or to nothing not followed", counted(found.skipped_links, "link")));
    short.chain(links).collect()
}

/// Prints a line on standard error. A closed standard error is no further problem.
fn tell(line: &str) {
    let _ = writeln!(std::io::stderr(), "{}", printable(line));
}

fn export(arguments: &ExportArguments) -> Result<()> {
    let dtype = if arguments.bf16 { Dtype::Bf16 } else { Dtype::F32 };
    let options = FileOptions { dtype, max_bytes: (arguments.max_file_mb * 1e6) as usize };
    let mut bar = WorkProgress::new("units of the model");
    let mut progress = |done, count| bar.show(done, count);
    train::export_with_progress(
        &arguments.checkpoint,
        &arguments.to,
        &arguments.overrides,
        options,
        &mut progress,
    )
}

fn print_plan(question: &PlanArgs, text: fn(&PlanReport) -> String) -> Result<()> {
    let answer = question.report()?;
    match question.json {
        true => print(answer.json()? + "\n"),
        false => print(text(&answer)),
    }
}
