//! `unisono check`, `explain` and `list` work on schedules and start no ranks.

use crate::given;
use std::path::{Path, PathBuf};
use std::time::Instant;
use unisono::schedule::check::{AlgorithmReport, cases as specs, sweep};
use unisono::schedule::draw::Drawing;
use unisono::schedule::{Algorithm, Collective, GroupSpec, Rank, Schedule};
use unisono_transports::text::printable;

#[derive(clap::Args)]
pub(crate) struct CheckArguments {
    /// Check every number of ranks up to this one.
    #[arg(long, default_value_t = 33, value_parser = clap::value_parser!(u16).range(1..))]
    max_ranks: u16,
    /// Also check a few cases of up to 1024 ranks.
    #[arg(long)]
    large: bool,
    /// Check only the algorithms of this name.
    #[arg(long, value_name = "NAME")]
    algo: Option<String>,
}

#[derive(clap::Args)]
pub(crate) struct ExplainArguments {
    /// The collective, for example all_reduce. Leave it out if --schedule is given, because the
    /// file names the collective.
    collective: Option<String>,
    /// The algorithm, for example ring.
    #[arg(long, default_value = "ring")]
    algo: String,
    /// Number of ranks, at most 1024.
    #[arg(long, short = 'n', default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1024))]
    ranks: u16,
    /// Root rank.
    #[arg(long, default_value_t = 0)]
    root: Rank,
    /// Number of chunks that are packed into one message, at most 1024. It has an effect only if
    /// the algorithm aggregates chunks.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    aggregation: u16,
    /// Write a picture of the schedule to this file.
    #[arg(long)]
    svg: Option<PathBuf>,
    /// Write the schedule to this file, as JSON that --schedule can read.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// Prints a row for each algorithm, or for each schedule of a file. Returns exit code 1 if a
/// schedule is wrong.
pub(crate) fn check(arguments: &CheckArguments) -> Result<u8, String> {
    let files = given::files();
    let ranks = arguments.max_ranks;
    match files.is_empty() {
        true => println!("# every algorithm for 1 to {ranks} ranks, every root, every aggregation"),
        false => println!("# schedules of files, in place where there is such a form"),
    }
    println!(
        "{:<15}{:<20}{:>8}{:>8}{:>8}{:>10}{:>9}{:>6}{:>9}  result",
        "collective", "algorithm", "cases", "ranks", "steps", "chunks", "scratch", "fifo", "seconds"
    );
    let rows = if files.is_empty() { check_algorithms(arguments)? } else { check_files(files)? };
    let cases: usize = rows.iter().map(|row| row.cases).sum();
    let violations = rows.iter().filter(|row| row.violation.is_some()).count();
    let checked = if cases == 1 { "1 schedule".to_owned() } else { format!("{cases} schedules") };
    let wrong = if violations == 1 { "1 is wrong".to_owned() } else { format!("{violations} are wrong") };
    println!("# {checked} of {} checked, {wrong}", algorithms(rows.len()));
    Ok(u8::from(violations > 0))
}

fn algorithms(count: usize) -> String {
    if count == 1 { "1 algorithm".to_owned() } else { format!("{count} algorithms") }
}

fn check_algorithms(arguments: &CheckArguments) -> Result<Vec<AlgorithmReport>, String> {
    let is_named = |row: &&'static Algorithm| arguments.algo.as_deref().is_none_or(|name| name == row.name);
    let chosen: Vec<_> = given::algorithms().into_iter().filter(is_named).collect();
    if let (Some(name), true) = (&arguments.algo, chosen.is_empty()) {
        return Err(format!("no algorithm `{name}`; `list` shows all"));
    }
    let check_row = |algorithm: &'static Algorithm| {
        let row = sweep(algorithm, &specs(algorithm, arguments.max_ranks.into(), arguments.large));
        print_row(&row);
        row
    };
    Ok(chosen.into_iter().map(check_row).collect())
}

fn check_files(files: &[PathBuf]) -> Result<Vec<AlgorithmReport>, String> {
    let check_file = |path: &PathBuf| {
        let schedule = given::read(path)?;
        let begun = Instant::now();
        let proof = given::prove(&schedule);
        let report = proof.as_ref().ok();
        // Names in reports are static, and this command ends after its report, so it may leak one.
        let row = AlgorithmReport {
            collective: schedule.collective,
            name: schedule.algorithm.clone().leak(),
            cases: 1,
            ranks: schedule.spec.ranks,
            steps: report.map_or(0, |report| report.steps),
            chunks: report.map_or(0, |report| report.chunks),
            scratch_chunks: report.map_or(0, |report| report.scratch_chunks),
            min_fifo_slots: report.map_or(0, |report| report.min_fifo_slots),
            elapsed: begun.elapsed(),
            violation: proof.err().map(|violation| (schedule.spec, violation)),
        };
        print_row(&row);
        Ok(row)
    };
    files.iter().map(check_file).collect()
}

fn print_row(row: &AlgorithmReport) {
    let result = match &row.violation {
        None => "holds".to_owned(),
        Some((spec, violation)) => {
            format!("VIOLATED for {spec:?}: {}", printable(&violation.to_string()))
        }
    };
    println!(
        "{:<15}{:<20}{:>8}{:>8}{:>8}{:>10}{:>9}{:>6}{:>9.2}  {result}",
        row.collective,
        printable(row.name),
        row.cases,
        row.ranks,
        row.steps,
        row.chunks,
        row.scratch_chunks,
        row.min_fifo_slots,
        row.elapsed.as_secs_f64()
    );
}

/// Prints a schedule step by step, and draws it on request. Returns exit code 1 if the schedule is
/// wrong.
pub(crate) fn explain(arguments: &ExplainArguments) -> Result<u8, String> {
    let schedule = match (&arguments.collective, given::files()) {
        (Some(collective), []) => {
            let (algorithm, schedule) = built(arguments, collective)?;
            println!("{} {}: {}", algorithm.collective, algorithm.name, algorithm.summary);
            println!("source: {}", algorithm.citation);
            schedule
        }
        (None, [file]) => given::read(file)?,
        (None, []) => return Err("name a collective, for example all_reduce, or a --schedule".to_owned()),
        _ => return Err("explain shows one schedule: name a collective or one --schedule".to_owned()),
    };
    let drawing = Drawing::new(&schedule);
    println!("{}", drawing.explain());
    // A violation stands below the steps already.
    if let Ok(report) = drawing.proof() {
        println!(
            "proved: {} steps in the longest chain, {} chunks moved, {} chunks of scratch",
            report.steps, report.chunks, report.scratch_chunks
        );
    }
    println!("copies and reductions on this host: {}", unisono_reducers::instruction_set());
    let write = |path: &Path, text: String| {
        std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))?;
        println!("written to {}", path.display());
        Ok::<_, String>(())
    };
    if let Some(path) = &arguments.svg {
        write(path, drawing.svg())?;
    }
    if let Some(path) = &arguments.json {
        write(path, serde_json::to_string(&schedule).map_err(|error| error.to_string())?)?;
    }
    Ok(u8::from(drawing.proof().is_err()))
}

/// Returns the algorithm that the arguments name, and its schedule for the number of ranks and the
/// root in the arguments.
fn built(arguments: &ExplainArguments, collective: &str) -> Result<(&'static Algorithm, Schedule), String> {
    let algorithm = algorithm(collective, &arguments.algo)?;
    let (ranks, root) = (arguments.ranks.into(), arguments.root);
    if root >= ranks {
        return Err(format!(
            "the root {root} is not a rank of {ranks} ranks; --root goes from 0 to --ranks minus 1"
        ));
    }
    let spec = GroupSpec { ranks, root, aggregation: arguments.aggregation.into() };
    if !(algorithm.supports)(&spec) {
        return Err(format!("{algorithm:?} does not support {ranks} ranks"));
    }
    Ok((algorithm, algorithm.schedule(&spec)))
}

fn algorithm(collective: &str, name: &str) -> Result<&'static Algorithm, String> {
    let known = Collective::ALL.into_iter().find(|known| known.name() == collective);
    let Some(known) = known else {
        let names: Vec<_> = Collective::ALL.iter().map(|known| known.name()).collect();
        return Err(format!("unknown collective `{collective}`; known are {}", names.join(", ")));
    };
    let mut rows = given::algorithms();
    rows.retain(|row| row.collective == known);
    rows.iter().copied().find(|row| row.name == name).ok_or_else(|| {
        let names: Vec<_> = rows.iter().map(|row| row.name).collect();
        format!("unknown algorithm `{name}` for {collective}; known are {}", names.join(", "))
    })
}

/// Prints the table of algorithms.
pub(crate) fn list() -> Result<u8, String> {
    for row in Algorithm::all() {
        println!("{:<15}{:<20}{}", row.collective, row.name, row.summary);
    }
    Ok(0)
}
