//! Comparison of unisono with other libraries: finds them, builds a small benchmark for each, runs
//! all in turn, and writes a record with tables and plots.

mod case;
mod control_group;
mod data_points;
mod install;
mod library;
mod load;
mod load_report;
mod machine;
mod neighbors;
mod placement;
mod plot;
mod process;
mod report;
mod results;
mod rounds;
mod rows;
mod run_result;
mod settings;
mod startup;
mod unisono;

use crate::unisono::Unisono;
use case::{Case, Collective, Transport, World};
use clap::Parser;
use library::{InstalledLibrary, Library, Paths};
use machine::Machine;
use neighbors::LoadControl;
use plot::Axis;
use results::Results;
use rounds::Plan;
use settings::TimeLimits;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use unisono_bench_support::size;

/// Compares unisono with the MPI libraries, oneCCL and Gloo on this machine.
#[derive(Parser)]
struct Arguments {
    /// Install libraries that are missing: Debian's packages (as root), and wheels from PyPI.
    #[arg(long)]
    install: bool,
    /// A look in less than three minutes: one collective, few sizes, one round.
    #[arg(long)]
    quick: bool,
    /// Collectives, separated by commas.
    #[arg(long, value_enum, value_delimiter = ',')]
    collectives: Vec<Collective>,
    /// Numbers of ranks.
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u16).range(2..=1024))]
    ranks: Vec<u16>,
    /// Sizes in bytes; K, M and G are understood.
    #[arg(long, value_delimiter = ',', value_parser = parse_size)]
    sizes: Vec<usize>,
    /// Transports.
    #[arg(long, value_enum, value_delimiter = ',')]
    transport: Vec<Transport>,
    /// Rounds, in each of which every library runs.
    #[arg(long)]
    rounds: Option<usize>,
    /// After the first round, a peer measures only sizes in which it took at most this many times
    /// the best peer's time; inf: all sizes.
    #[arg(long, default_value_t = 1.5)]
    within: f64,
    /// Further rounds for data points where unisono and the best peer are close.
    #[arg(long)]
    more: Option<usize>,
    /// A data point is close while neither median is more than this many times the other.
    #[arg(long, default_value_t = 1.35)]
    close: f64,
    /// Milliseconds of samples for each size in each round; there are always three samples.
    #[arg(long, default_value_t = 30)]
    budget: u64,
    /// Seconds: a size whose three samples would take longer is skipped. A launch without output
    /// for three times as long is ended.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    limit: u64,
    /// Busy loops beside the ranks, separated by commas: 0,2 measures quiet and loaded in turn.
    #[arg(long, value_delimiter = ',', value_parser = parse_loops)]
    busy: Vec<usize>,
    /// Niceness of the loops: above 0 they yield to the ranks, below 0 they go first.
    #[arg(long, value_delimiter = ',', allow_hyphen_values = true,
          value_parser = clap::value_parser!(i32).range(-20..=19))]
    busy_nice: Vec<i32>,
    /// Jobs of unisono on the machine: 2 runs another one, with as many ranks, beside the measured
    /// one.
    #[arg(long, value_delimiter = ',', value_parser = parse_jobs)]
    jobs: Vec<usize>,
    /// Percentages of the time of all cores that the measured ranks may use, by a control group;
    /// 100: no quota.
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u8).range(1..=100))]
    cpu_quota: Vec<u8>,
    /// Only these contenders, by name, separated by commas: unisono, "Open MPI 5", Gloo ...
    #[arg(long, value_delimiter = ',', value_parser = parse_library)]
    only: Vec<String>,
    /// Leave out the startup of 64 ranks.
    #[arg(long)]
    no_startup: bool,
    /// Keep the results in the folder and run only what is missing; with --rounds 0, only draw.
    #[arg(long)]
    resume: bool,
    /// Folder for the record.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Folder for virtual environments and built benchmarks.
    #[arg(long)]
    cache: Option<PathBuf>,
    /// Take the benchmarks of the cache as they are and compile none, and PyTorch from the first
    /// Python of PATH.
    #[arg(long, conflicts_with = "install")]
    built: bool,
    /// Origin of PyTorch: Debian's is older and small, PyPI's is new and 5 GB.
    #[arg(long, default_value = "debian", value_parser = ["debian", "pypi"])]
    torch: String,
    /// The command `unisono`; the one built beside this program if left out.
    #[arg(long)]
    unisono: Option<PathBuf>,
}

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    if words.next().is_some_and(|word| word == neighbors::ARGUMENT) {
        eprintln!("{}", neighbors::serve(&words.collect::<Vec<_>>()));
        return ExitCode::FAILURE;
    }
    match run(&Arguments::parse()) {
        Ok(folder) => {
            println!("{}", folder.join("README.md").display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("compare: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<PathBuf, String> {
    let machine = Machine::here();
    let places = arguments.paths()?;
    let out =
        arguments.out.clone().unwrap_or_else(|| repository().join("benches/record").join(machine.slug()));
    for folder in [&out, &places.cache] {
        std::fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    if arguments.install {
        install::install(&arguments.libraries(), &places);
    }
    let unisono = Unisono::new(arguments.program()?, &places.cache)?;
    let (peers, missing) = find_libraries(&arguments.libraries(), &places);
    let plan = arguments.plan(machine.cores);
    let control = LoadControl::new(&plan.loads(), machine.cores)?;
    let mut results = arguments.results(&out)?;
    if !arguments.no_startup && plan.rounds > 0 {
        let times = if arguments.quick { 1 } else { STARTUPS };
        plan.startup(times, &unisono, &peers, &mut results)?;
    }
    plan.run(&unisono, &peers, &control, &mut results)?;
    let points = crate::data_points::data_points(&results.rows);
    write(&out, "medians.csv", &crate::data_points::to_csv(&points)?)?;
    let about = report::ReportInfo {
        machine: &machine,
        unisono: unisono.version(repository()),
        peers: &peers,
        missing: &missing,
        command: command(),
        budget_ms: plan.time_limits.budget.as_millis(),
        limit_s: plan.time_limits.limit.as_secs(),
        shares: control.note(),
        plots: plots(&out, &points)?,
    };
    write(&out, "README.md", &report::readme(&about, &results.rows))?;
    Ok(out)
}

/// Parses a size of at least one float32.
fn parse_size(text: &str) -> Result<usize, String> {
    match size::parse(text)? {
        bytes if bytes >= size_of::<f32>() => Ok(bytes),
        _ => Err(format!("`{text}` is smaller than one float32; the least size is 4")),
    }
}

fn parse_loops(text: &str) -> Result<usize, String> {
    parse_within(text, 0..=1024)
}

fn parse_jobs(text: &str) -> Result<usize, String> {
    parse_within(text, 1..=8)
}

fn parse_within(text: &str, range: RangeInclusive<usize>) -> Result<usize, String> {
    let number = text.trim().parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| format!("`{text}` is not a number from {} to {}", range.start(), range.end()))
}

/// Parses the name of a library, or of unisono in one of its two forms.
fn parse_library(text: &str) -> Result<String, String> {
    let mut names =
        [crate::unisono::NAME, crate::unisono::SYMMETRIC].into_iter().chain(Library::ALL.map(Library::name));
    let listed = names.clone().collect::<Vec<_>>().join(", ");
    let found = names.find(|name| name.eq_ignore_ascii_case(text.trim()));
    found.map(str::to_owned).ok_or_else(|| format!("there are {listed}"))
}

/// Finds the installed libraries, and the reasons why others are missing.
fn find_libraries(
    libraries: &[Library],
    places: &Paths,
) -> (Vec<InstalledLibrary>, Vec<(&'static str, String)>) {
    let (mut peers, mut missing) = (Vec::new(), Vec::new());
    for &library in libraries {
        match library::find(library, places) {
            Ok(peer) => {
                eprintln!("{}: {}", library.name(), peer.version);
                peers.push(peer);
            }
            Err(reason) => {
                eprintln!("{}: left out: {reason}; --install gets it", library.name());
                missing.push((library.name(), reason));
            }
        }
    }
    (peers, missing)
}

/// Draws all cases and names the files.
fn plots(out: &Path, points: &[crate::data_points::DataPoint]) -> Result<BTreeSet<String>, String> {
    let mut cases: BTreeMap<Case, Vec<&crate::data_points::DataPoint>> = BTreeMap::new();
    for point in points.iter().filter(|point| point.case.load.is_quiet()) {
        cases.entry(point.case).or_default().push(point);
    }
    let mut drawn = BTreeSet::new();
    for (case, points) in cases {
        for axis in Axis::BOTH {
            if plot::draw(out, &points, case, axis)? {
                drawn.insert(plot::file_name(case, axis));
            }
        }
    }
    Ok(drawn)
}

impl Arguments {
    fn plan(&self, cores: usize) -> Plan {
        let quick = self.quick;
        let chosen = |given: &[usize], quickly: &[usize], else_: &[usize]| {
            let fallback = if quick { quickly } else { else_ };
            if given.is_empty() { fallback.to_vec() } else { given.to_vec() }
        };
        let ranks: Vec<usize> = self.ranks.iter().map(|&ranks| usize::from(ranks)).collect();
        let ranks = chosen(&ranks, &[2, 4], &[2, 4, 8]);
        let default_collectives = if quick { &[Collective::AllReduce][..] } else { &Collective::ALL };
        let collectives = if self.collectives.is_empty() { default_collectives } else { &self.collectives };
        let default_transports = [Transport::Shm, Transport::Tcp];
        let transports = if self.transport.is_empty() { &default_transports[..] } else { &self.transport };
        let loads = load::combinations(&self.busy, &self.busy_nice, &self.jobs, &self.cpu_quota);
        let mut worlds = Vec::new();
        for (&transport, &ranks) in
            transports.iter().flat_map(|transport| ranks.iter().map(move |more| (transport, more)))
        {
            worlds.extend(loads.iter().map(|&load| World { transport, ranks, load }));
        }
        Plan {
            worlds,
            collectives: collectives.to_vec(),
            sizes: chosen(&self.sizes, &QUICK_SIZES, &SIZES),
            rounds: self.rounds.unwrap_or(if quick { 1 } else { 3 }),
            extra_rounds: self.more.unwrap_or(if quick { 0 } else { 6 }),
            close_ratio: self.close,
            time_limits: TimeLimits {
                budget: Duration::from_millis(self.budget),
                limit: Duration::from_secs(self.limit),
            },
            retry_ratio: self.within,
            cores,
            only: self.only.clone(),
        }
    }

    fn paths(&self) -> Result<Paths, String> {
        let home = std::env::home_dir().map(|home| home.join(".cache/unisono-compare"));
        let cache = self.cache.clone().or(home).ok_or("no home directory; say --cache FOLDER")?;
        // A machine where nothing is built may have a checkout elsewhere.
        let sources = if self.built { "benches/compare" } else { env!("CARGO_MANIFEST_DIR") }.into();
        Ok(Paths { cache, sources, torch_wheel: self.torch == "pypi", built: self.built })
    }

    /// The libraries that take part.
    fn libraries(&self) -> Vec<Library> {
        let is_chosen =
            |library: &Library| self.only.is_empty() || self.only.iter().any(|name| name == library.name());
        Library::ALL.into_iter().filter(is_chosen).collect()
    }

    /// `unisono` as built together with this program.
    fn program(&self) -> Result<PathBuf, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        Ok(self.unisono.clone().unwrap_or_else(|| program.with_file_name("unisono")))
    }

    fn results(&self, out: &Path) -> Result<Results, String> {
        let path = out.join("results.csv");
        let rows = match std::fs::read_to_string(&path) {
            Ok(text) if self.resume => rows::from_csv(&text)?,
            _ => Vec::new(),
        };
        Ok(Results { rows, path })
    }
}

fn write(folder: &Path, name: &str, text: &str) -> Result<(), String> {
    let path = folder.join(name);
    std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
}

fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Returns this command as a user would type it.
fn command() -> String {
    let arguments = std::env::args().skip(1);
    let quoted = arguments.map(|word| if word.contains(' ') { format!("\"{word}\"") } else { word });
    std::iter::once("cargo xtask bench compare".to_owned()).chain(quoted).collect::<Vec<_>>().join(" ")
}

const SIZES: [usize; 10] =
    [8, 128, 1 << 10, 8 << 10, 32 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 128 << 20];
const QUICK_SIZES: [usize; 4] = [8, 32 << 10, 1 << 20, 16 << 20];
/// Starts of each library.
const STARTUPS: usize = 3;
