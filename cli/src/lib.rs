//! The `unisono` command: launch ranks, measure collectives, check and explain schedules.

/// Prints a line on standard error, and ignores the error if nobody reads the line. The macro of
/// the standard library panics then, and a launcher that panics kills its ranks.
macro_rules! eprintln {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($words)*);
    }};
}

mod bind;
mod features;
mod files;
mod flight;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod given;
mod launch;
mod perf;
mod renamed;
mod schedules;
mod simulate;
mod topo;
mod trace;
mod tune;

use bind::Bind;
use clap::{Parser, Subcommand};
use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use unisono::schedule::Algorithm;
use unisono_transports::text::printable;

#[derive(Parser)]
#[command(name = "unisono", version, about = "Collective communication: launch, measure, check, explain")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// JSON file with a schedule, which is proved correct before use. The schedule is named by the
    /// file's `algorithm` field or, if that is empty, by the name of the file. The option can be
    /// given several times.
    #[arg(long = "schedule", value_name = "FILE", global = true)]
    schedules: Vec<PathBuf>,
}

#[derive(Subcommand)]
enum Command {
    /// Start the ranks of a program on this host.
    Run(RunArguments),
    /// Measure and verify a collective, as nccl-tests does.
    Perf(Box<perf::Arguments>),
    /// Verify the schedules of every algorithm for many numbers of ranks.
    Check(schedules::CheckArguments),
    /// Show the steps of an algorithm.
    Explain(schedules::ExplainArguments),
    /// Measure every algorithm on this machine and write a tuning file of the fastest.
    Tune(tune::Arguments),
    /// Compare the flight records of failed ranks and report where the ranks differ.
    Analyze(flight::AnalyzeArguments),
    /// Show the operations of the ranks on this host, and the ranks for which each rank waits.
    Status(flight::StatusArguments),
    /// Merge the traces of ranks (UNISONO_TRACE_DIR) into one file for Perfetto.
    Trace(trace::Arguments),
    /// Simulate random failures of ranks in virtual time, and check the surviving ranks.
    Simulate(simulate::Arguments),
    /// Show the GPUs of this host and the paths between them.
    Topo(topo::Arguments),
    /// List the algorithms.
    List,
    #[command(hide = true)]
    ExecRank {
        launcher: i32,
        /// Index of this rank among the ranks that divide the cores, and the number of these ranks.
        #[arg(long, num_args = 2)]
        core_of: Option<Vec<usize>>,
        #[arg(last = true)]
        program: Vec<OsString>,
    },
}

#[derive(clap::Args)]
struct RunArguments {
    /// Number of ranks on this host.
    #[arg(short = 'n', long)]
    ranks: usize,
    /// Number of hosts. Start the same command on each host, and give --node-rank its number.
    #[arg(long, default_value_t = 1, value_name = "HOSTS")]
    nnodes: usize,
    /// Number of this host, from 0.
    #[arg(long, default_value_t = 0, value_name = "NUMBER")]
    node_rank: usize,
    /// Address of host 0 and a free port on it, where the ranks of several hosts meet. All hosts
    /// need the same UNISONO_SECRET.
    #[arg(long, value_name = "HOST:PORT")]
    master: Option<String>,
    /// Print the lines of the ranks without the number of the rank in front.
    #[arg(long)]
    no_prefix: bool,
    /// Print the process id of each rank.
    #[arg(short, long)]
    verbose: bool,
    /// Let the other ranks go on when a rank fails, so that they can shrink the communicator.
    #[arg(short, long)]
    continue_on_failure: bool,
    /// Grace period in milliseconds: how long the ranks may run on after SIGTERM, SIGINT or SIGHUP
    /// before they get SIGKILL. If a rank fails, the others get SIGTERM two seconds later.
    #[arg(long, default_value_t = 30_000)]
    grace_ms: u64,
    /// Binding of the ranks to the cores of this host. If there are more ranks than cores,
    /// neighboring ranks share a core.
    #[arg(long, value_enum, default_value = "none")]
    bind: Bind,
    /// Program and its arguments.
    #[arg(trailing_var_arg = true, required = true)]
    program: Vec<OsString>,
}

/// Ends the command silently when the reader of its output has gone, as in `unisono list | head`.
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

/// Exit code that shells report for programs ended by SIGPIPE.
const SIGPIPE_EXIT_CODE: i32 = 128 + 13;

/// Logs to standard error. Only warnings are logged unless `UNISONO_LOG` selects more. Simulated
/// failures are not logged.
fn init_logging(command: &Command) {
    use tracing_subscriber::filter::{LevelFilter, Targets};
    use tracing_subscriber::layer::SubscriberExt as _;
    use tracing_subscriber::util::SubscriberInitExt as _;
    let usual = if matches!(command, Command::Simulate(_)) { LevelFilter::OFF } else { LevelFilter::WARN };
    let wanted = std::env::var("UNISONO_LOG").ok().and_then(|text| text.parse::<Targets>().ok());
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        // Reports of lines that cannot be written go to standard error, too, and panic.
        .log_internal_errors(false);
    let filter = wanted.unwrap_or_else(|| Targets::new().with_default(usual));
    tracing_subscriber::registry().with(lines).with(filter).init();
}

/// Parses the command line. If a word of it has a new name, the error says the new name.
fn parse() -> Arguments {
    Arguments::try_parse().unwrap_or_else(|error| {
        let code = error.exit_code();
        let _ = error.print();
        if error.use_stderr()
            && let Some(hint) = renamed::hint(std::env::args())
        {
            eprintln!("\n  hint: {hint}");
        }
        std::process::exit(code)
    })
}

/// Carries out the command line of this process, and returns the exit code.
pub fn main() -> ExitCode {
    main_with(&[])
}

/// Carries out the command line of this process as the command `unisono` does, and adds algorithms
/// of your own to those of the library.
///
/// `list`, `check`, `explain`, `perf`, `tune` and `simulate` know your algorithms by their names.
/// So do the ranks that `perf` and `tune` start, because each of these ranks runs this same
/// program.
///
/// ```no_run
/// use unisono::schedule::{Algorithm, Collective, ProgramBuilder, input, output};
///
/// fn main() -> std::process::ExitCode {
///     let star = Algorithm::new("star", Collective::Broadcast, |spec, rank| {
///         let mut program = ProgramBuilder::new(rank);
///         if rank == spec.root {
///             let peers = (0..spec.ranks).filter(|&peer| peer != rank);
///             peers.for_each(|peer| _ = program.send(peer, [input(0)]));
///             program.copy(input(0), output(0));
///         } else {
///             program.recv(spec.root, [output(0)]);
///         }
///         program.finish(0, 0)
///     });
///     unisono_cli::main_with(&[star])
/// }
/// ```
pub fn main_with(algorithms: &[Algorithm]) -> ExitCode {
    exit_on_broken_pipe();
    let Arguments { command, schedules } = parse();
    init_logging(&command);
    given::set_files(schedules);
    match register(&command, algorithms).and_then(|()| carry_out(command)) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("unisono: {}", printable(&error));
            ExitCode::FAILURE
        }
    }
}

/// Makes the algorithms of the caller and of files known by their names, for the commands that run
/// or show algorithms.
fn register(command: &Command, algorithms: &[Algorithm]) -> Result<(), String> {
    match command {
        // No algorithm runs in this process, but in the program that it starts or becomes.
        Command::ExecRank { .. } | Command::Run(_) => Ok(()),
        // These two commands prove schedules and show what is wrong with them, so nothing is proved
        // before, and they read the files themselves.
        Command::Check(_) | Command::Explain(_) => given::set_algorithms(algorithms),
        _ => {
            for algorithm in algorithms {
                unisono::register_algorithm(*algorithm).map_err(|error| error.to_string())?;
            }
            given::register()
        }
    }
}

fn carry_out(command: Command) -> Result<u8, String> {
    match command {
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
        Command::ExecRank { launcher, core_of, program } => {
            if let Some(&[index, ranks]) = core_of.as_deref() {
                bind::bind_thread(index, ranks);
            }
            let (code, why) = launch::exec_program(launcher, &program);
            eprintln!("unisono: {why}");
            Ok(code)
        }
    }
}

fn run(arguments: RunArguments) -> Result<u8, String> {
    if arguments.ranks == 0 {
        return Err("a job needs at least one rank".to_owned());
    }
    launch::Launch {
        ranks: arguments.ranks,
        hosts: launch::Hosts::new(arguments.nnodes, arguments.node_rank, arguments.master.as_deref())?,
        program: arguments.program,
        prefix: !arguments.no_prefix,
        verbose: arguments.verbose,
        continue_on_failure: arguments.continue_on_failure,
        grace: Duration::from_millis(arguments.grace_ms),
        bind: arguments.bind,
    }
    .run()
}
