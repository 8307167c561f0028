//! `unisono check`, `explain` and `list`: schedules without ranks.

use std::path::PathBuf;
use unisono::schedule::check::{AlgorithmReport, cases as specs, sweep};
use unisono::schedule::{Algorithm, Collective, GroupSpec, Rank, draw, find};

#[derive(clap::Args)]
pub(crate) struct CheckArguments {
    /// Check every number of ranks up to this one.
    #[arg(long, default_value_t = 33, value_parser = clap::value_parser!(u16).range(1..))]
    max_ranks: u16,
    /// Check a few cases of up to 1024 ranks, too.
    #[arg(long)]
    large: bool,
}

#[derive(clap::Args)]
pub(crate) struct ExplainArguments {
    /// The collective, for example all_reduce.
    collective: String,
    /// The algorithm, for example ring.
    #[arg(long, default_value = "ring")]
    algo: String,
    /// Number of ranks, at most 1024.
    #[arg(long, short = 'n', default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1024))]
    ranks: u16,
    /// Root rank.
    #[arg(long, default_value_t = 0)]
    root: Rank,
    /// Chunks packed into one message, where the algorithm aggregates, at most 1024.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    aggregation: u16,
    /// Write a picture of the schedule to this file.
    #[arg(long)]
    svg: Option<PathBuf>,
}

/// Prints a row for each algorithm; the exit code is 1 if a schedule is wrong.
pub(crate) fn check(arguments: &CheckArguments) -> Result<u8, String> {
    println!("# every algorithm for 1 to {} ranks, every root, every aggregation", arguments.max_ranks);
    println!(
        "{:<15}{:<20}{:>8}{:>8}{:>8}{:>10}{:>9}{:>6}{:>9}  result",
        "collective", "algorithm", "cases", "ranks", "steps", "chunks", "scratch", "fifo", "seconds"
    );
    let (mut cases, mut violations) = (0, 0);
    for algorithm in Algorithm::ALL {
        let row = sweep(algorithm, &specs(algorithm, arguments.max_ranks.into(), arguments.large));
        cases += row.cases;
        violations += usize::from(row.violation.is_some());
        print_row(&row);
    }
    println!("# {cases} schedules checked, {violations} algorithms with violations");
    Ok(u8::from(violations > 0))
}

fn print_row(row: &AlgorithmReport) {
    let result = match &row.violation {
        None => "holds".to_owned(),
        Some((spec, violation)) => format!("VIOLATED for {spec:?}: {violation}"),
    };
    println!(
        "{:<15}{:<20}{:>8}{:>8}{:>8}{:>10}{:>9}{:>6}{:>9.2}  {result}",
        row.collective,
        row.name,
        row.cases,
        row.ranks,
        row.steps,
        row.chunks,
        row.scratch_chunks,
        row.min_fifo_slots,
        row.elapsed.as_secs_f64()
    );
}

/// Prints a schedule step by step, and draws it on request.
pub(crate) fn explain(arguments: &ExplainArguments) -> Result<u8, String> {
    let algorithm = algorithm(&arguments.collective, &arguments.algo)?;
    let ExplainArguments { ranks, root, aggregation, .. } = *arguments;
    let (ranks, aggregation) = (ranks.into(), aggregation.into());
    if root >= ranks {
        return Err(format!(
            "the root {root} is not a rank of {ranks} ranks; --root goes from 0 to --ranks minus 1"
        ));
    }
    let spec = GroupSpec { ranks, root, aggregation };
    if !(algorithm.supports)(&spec) {
        return Err(format!("{algorithm:?} does not support {ranks} ranks"));
    }
    let schedule = algorithm.schedule(&spec);
    println!("{} {}: {}", algorithm.collective, algorithm.name, algorithm.summary);
    println!("source: {}", algorithm.citation);
    println!("{}", draw::explain(&schedule));
    if let Some(path) = &arguments.svg {
        std::fs::write(path, draw::svg(&schedule)).map_err(|error| format!("{}: {error}", path.display()))?;
        println!("drawn to {}", path.display());
    }
    Ok(0)
}

fn algorithm(collective: &str, name: &str) -> Result<&'static Algorithm, String> {
    let known = Collective::ALL.into_iter().find(|known| known.name() == collective);
    let Some(known) = known else {
        let names: Vec<_> = Collective::ALL.iter().map(|known| known.name()).collect();
        return Err(format!("unknown collective `{collective}`; known are {}", names.join(", ")));
    };
    find(known, name).ok_or_else(|| {
        let rows = Algorithm::ALL.iter().filter(|row| row.collective == known);
        let names: Vec<_> = rows.map(|row| row.name).collect();
        format!("unknown algorithm `{name}` for {collective}; known are {}", names.join(", "))
    })
}

/// Prints the table of algorithms.
pub(crate) fn list() -> Result<u8, String> {
    for row in Algorithm::ALL {
        println!("{:<15}{:<20}{}", row.collective, row.name, row.summary);
    }
    Ok(0)
}
