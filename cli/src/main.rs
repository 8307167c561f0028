//! The `unisono` command: launch ranks, measure collectives, check and explain schedules.

mod files;
mod flight;
mod launch;
mod perf;
mod schedules;
mod simulate;
mod topo;
mod trace;
mod tune;

use clap::{Parser, Subcommand};
use std::ffi::OsString;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

#[derive(Parser)]
#[command(name = "unisono", version, about = "Collective communication: launch, measure, check, explain")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start the ranks of a program on this host.
    Run(RunArguments),
    /// Measure and verify a collective, as nccl-tests does.
    Perf(Box<perf::Arguments>),
    /// Prove every algorithm for every number of ranks.
    Check(schedules::CheckArguments),
    /// Show what an algorithm does, step by step.
    Explain(schedules::ExplainArguments),
    /// Measure every algorithm on this machine and write the table of the fastest.
    Tune(tune::Arguments),
    /// Say where ranks differ that have failed, by the flight records that they left.
    Analyze(flight::AnalyzeArguments),
    /// Ask the ranks that run on this host what they are doing, and who waits for whom.
    Status(flight::StatusArguments),
    /// Put together, for Perfetto, what ranks wrote to UNISONO_TRACE_DIR of what they did when.
    Trace(trace::Arguments),
    /// Let ranks fail in every way that a seed gives, in virtual time, and check what becomes of the others.
    Simulate(simulate::Arguments),
    /// Say where the GPUs of this host are, and how they reach each other.
    Topo(topo::Arguments),
    /// List the algorithms.
    List,
    #[command(hide = true)]
    ExecRank {
        launcher: i32,
        #[arg(last = true)]
        program: Vec<OsString>,
    },
}

#[derive(clap::Args)]
struct RunArguments {
    /// Number of ranks.
    #[arg(short = 'n', long)]
    ranks: usize,
    /// Leave output lines as they are.
    #[arg(long)]
    no_prefix: bool,
    /// Say which process each rank is.
    #[arg(short, long)]
    verbose: bool,
    /// Let the other ranks go on when one fails: they may shrink to those that are left.
    #[arg(short, long)]
    continue_on_failure: bool,
    /// Milliseconds that ranks get to end when one has failed or the job was told to end.
    #[arg(long, default_value_t = 2000)]
    grace_ms: u64,
    /// The program and its arguments.
    #[arg(last = true, required = true)]
    program: Vec<OsString>,
}

/// Lets a reader that has had enough, as in `unisono list | head`, end the command without a word.
fn exit_on_broken_pipe() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let text = panic.payload().downcast_ref::<String>();
        if text.is_some_and(|text| text.starts_with("failed printing to stdout")) {
            std::process::exit(SIGPIPE_EXIT_CODE);
        }
        usual(panic);
    }));
}

/// What shells say of programs that SIGPIPE ended.
const SIGPIPE_EXIT_CODE: i32 = 128 + 13;

/// On standard error; `UNISONO_LOG` asks for more than warnings. Simulated failures are no warnings.
fn init_logging(command: &Command) {
    use tracing_subscriber::EnvFilter;
    let usual = if matches!(command, Command::Simulate(_)) { "off" } else { "warn" };
    let filter = EnvFilter::try_from_env("UNISONO_LOG").unwrap_or_else(|_| EnvFilter::new(usual));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
}

fn main() -> ExitCode {
    exit_on_broken_pipe();
    let command = Arguments::parse().command;
    init_logging(&command);
    let ended = match command {
        Command::Run(arguments) => run(arguments),
        Command::Perf(arguments) => perf::run(&arguments),
        Command::Check(arguments) => schedules::check(&arguments),
        Command::Explain(arguments) => schedules::explain(&arguments),
        Command::Tune(arguments) => tune::run(&arguments),
        Command::Analyze(arguments) => flight::analyze(&arguments),
        Command::Status(arguments) => flight::status(&arguments),
        Command::Trace(arguments) => trace::run(&arguments),
        Command::Simulate(arguments) => simulate::run(&arguments),
        Command::Topo(arguments) => topo::run(&arguments),
        Command::List => schedules::list(),
        Command::ExecRank { launcher, program } => {
            let (code, why) = launch::exec_program(launcher, &program);
            eprintln!("unisono: {why}");
            Ok(code)
        }
    };
    match ended {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("unisono: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: RunArguments) -> Result<u8, String> {
    if arguments.ranks == 0 {
        return Err("a job needs at least one rank".to_owned());
    }
    launch::Launch {
        ranks: arguments.ranks,
        program: arguments.program,
        prefix: !arguments.no_prefix,
        verbose: arguments.verbose,
        continue_on_failure: arguments.continue_on_failure,
        grace: Duration::from_millis(arguments.grace_ms),
    }
    .run()
}
