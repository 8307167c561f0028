//! `unisono tune` measures every algorithm and writes a tuning file that names the fastest ones, or
//! checks the tuning file in use.

mod check;
mod fastest;
mod measure;

use measure::Case;
use std::path::PathBuf;
use unisono::schedule::Collective;
use unisono::select::{Topology, TuningTable, UNLIMITED};
use unisono_bench_support::size;
use unisono_transports::sys::affinity::available_cpus;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Numbers of ranks to measure, in ascending order. The result of the last number also applies
    /// to larger numbers.
    #[arg(long, value_delimiter = ',', default_value = "2,4,8")]
    ranks: Vec<usize>,
    /// Transports to measure: shm for ranks that share memory, tcp for sockets.
    #[arg(long, value_delimiter = ',', default_value = "shm,tcp")]
    transport: Vec<String>,
    /// Measure only these collectives.
    #[arg(long, value_delimiter = ',')]
    collectives: Vec<String>,
    /// Largest size to measure, in bytes.
    #[arg(short = 'e', long = "maxbytes", value_parser = size::parse, default_value = "4M")]
    max_bytes: usize,
    /// Number of rounds, each of which measures everything. The median over the rounds is the
    /// result.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// File to write. Programs use it if `UNISONO_TUNING_FILE` names it.
    #[arg(short, long, default_value = "unisono-table.txt")]
    out: PathBuf,
    /// Instead of writing a file, compare the automatic choice with every algorithm. The choice
    /// comes from the file in `UNISONO_TUNING_FILE`, if that is set. The command fails if another
    /// algorithm is more than 10 % faster at some size.
    #[arg(long, conflicts_with = "out")]
    check: bool,
}

/// Measures all cases and writes the file, or checks the tuning file in use.
pub(crate) fn run(arguments: &Arguments) -> Result<u8, String> {
    let fields = cases(arguments)?;
    if arguments.check { check(arguments, &fields) } else { write(arguments, &fields) }
}

/// Returns the cases to measure.
fn cases(arguments: &Arguments) -> Result<Vec<Case<'_>>, String> {
    let mut fields = Vec::new();
    for transport in &arguments.transport {
        if !["shm", "tcp"].contains(&transport.as_str()) {
            return Err(format!("`{transport}` is neither shm nor tcp"));
        }
        for collective in Collective::ALL.into_iter().filter(|collective| is_selected(arguments, *collective))
        {
            fields.extend(arguments.ranks.iter().map(|&ranks| Case { collective, transport, ranks }));
        }
    }
    Ok(fields)
}

fn is_selected(arguments: &Arguments, collective: Collective) -> bool {
    collective != Collective::Barrier
        && (arguments.collectives.is_empty()
            || arguments.collectives.iter().any(|name| name == collective.name()))
}

fn write(arguments: &Arguments, fields: &[Case]) -> Result<u8, String> {
    let mut choices = Vec::new();
    for field in fields {
        let is_last = Some(&field.ranks) == arguments.ranks.last();
        let ranks_max = if is_last { ranks_limit(field.topology()) } else { field.ranks };
        choices.extend(fastest::measure(field, arguments.max_bytes, arguments.rounds, ranks_max)?);
    }
    let text = format!(
        "# collective medium ranks_max bytes_max algorithm; measured by `unisono tune`\n{}",
        TuningTable::new(choices)
    );
    std::fs::write(&arguments.out, &text).map_err(|error| format!("{}: {error}", arguments.out.display()))?;
    print!("{text}");
    Ok(0)
}

/// Returns the largest number of ranks to which the measurement with the most ranks applies.
///
/// A measurement with one core per rank does not apply to more ranks than cores, because other
/// algorithms are fastest when ranks share cores.
fn ranks_limit(medium: Topology) -> usize {
    if medium == Topology::SharedMemory { available_cpus().len() } else { UNLIMITED }
}

fn check(arguments: &Arguments, fields: &[Case]) -> Result<u8, String> {
    println!("{}", check::head());
    let mut total = check::Summary::default();
    for field in fields {
        let found = check::compare(field, arguments.max_bytes, arguments.rounds)?;
        total = check::Summary { sizes: total.sizes + found.sizes, slower: total.slower + found.slower };
    }
    println!(
        "# {} of {} sizes are more than 10 % slower than the best fixed choice",
        total.slower, total.sizes
    );
    Ok(u8::from(total.slower > 0))
}

/// Reads bytes as the results of `perf`.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(bytes: &[u8]) {
    if let Ok(times) = measure::parse(&String::from_utf8_lossy(bytes)) {
        assert!(times.len() <= bytes.len());
    }
}
