//! `tune`: measures every algorithm on this machine and writes the table of the fastest.

use crate::size;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use unisono::schedule::{Algorithm, Collective, Spec};
use unisono::select::{ANY, Choice, Medium, Table};
use unisono_transports::affinity::cores;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Numbers of ranks, the smallest first; the last also stands for larger ones.
    #[arg(long, value_delimiter = ',', default_value = "2,4,8")]
    ranks: Vec<usize>,
    /// Between ranks that share memory (shm), or over sockets (tcp).
    #[arg(long, value_delimiter = ',', default_value = "shm,tcp")]
    transport: Vec<String>,
    /// Only these collectives.
    #[arg(long, value_delimiter = ',')]
    collectives: Vec<String>,
    /// Largest size in bytes.
    #[arg(short = 'e', long = "maxbytes", value_parser = size::parse, default_value = "4M")]
    max_bytes: usize,
    /// Times that everything is measured; medians count.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// File to write; `UNISONO_TABLE` names it to programs.
    #[arg(short, long, default_value = "unisono-table.txt")]
    out: PathBuf,
}

/// Microseconds by bytes of a share, for each algorithm.
type Times = BTreeMap<usize, Vec<(&'static Algorithm, f64)>>;

/// Measures, and writes the file.
pub(crate) fn run(arguments: &Arguments) -> Result<u8, String> {
    let mut choices = Vec::new();
    for transport in &arguments.transport {
        if !["shm", "tcp"].contains(&transport.as_str()) {
            return Err(format!("`{transport}` is neither shm nor tcp"));
        }
        for collective in Collective::ALL.into_iter().filter(|collective| wanted(arguments, *collective)) {
            for (index, &ranks) in arguments.ranks.iter().enumerate() {
                let medium = medium(transport, ranks);
                let times = measure(arguments, collective, transport, medium, ranks)?;
                let is_last = index + 1 == arguments.ranks.len();
                let ranks_max = if is_last { most(medium) } else { ranks };
                choices.extend(fastest(&times, medium, ranks_max));
            }
        }
    }
    let text = format!(
        "# collective medium ranks_max bytes_max algorithm; measured by `unisono tune`\n{}",
        Table::new(choices)
    );
    std::fs::write(&arguments.out, &text).map_err(|error| format!("{}: {error}", arguments.out.display()))?;
    print!("{text}");
    Ok(0)
}

/// Up to how many ranks the largest number that was measured stands for. What was measured with a core each is not for more ranks
/// than cores, where sharing memory is cheapest in other ways.
fn most(medium: Medium) -> usize {
    if medium == Medium::Windows { cores().len() } else { ANY }
}

/// What ranks have between them here.
fn medium(transport: &str, ranks: usize) -> Medium {
    match (transport, ranks > cores().len()) {
        ("shm", false) => Medium::Windows,
        ("shm", true) => Medium::CrowdedWindows,
        (_, false) => Medium::Messages,
        (_, true) => Medium::Crowded,
    }
}

fn wanted(arguments: &Arguments, collective: Collective) -> bool {
    collective != Collective::Barrier
        && (arguments.collectives.is_empty()
            || arguments.collectives.iter().any(|name| name == collective.name()))
}

fn measure(
    arguments: &Arguments,
    collective: Collective,
    transport: &str,
    medium: Medium,
    ranks: usize,
) -> Result<Times, String> {
    let spec = Spec { ranks, root: 0, aggregation: 1 };
    let rows =
        Algorithm::ALL.iter().filter(|row| row.collective == collective && row.reach <= medium.reach());
    let rows: Vec<_> = rows.filter(|row| (row.fits)(&spec)).collect();
    let mut samples: BTreeMap<(usize, usize), Vec<f64>> = BTreeMap::new();
    // Round after round, so that what disturbs the machine for a while disturbs all alike.
    for round in 1..=arguments.rounds {
        for (index, row) in rows.iter().enumerate() {
            eprintln!("{transport}, {ranks} ranks, round {round}: {collective} {}", row.name);
            for (bytes, micros) in perf(arguments, row, transport, ranks)? {
                let share = if is_total(collective) { bytes / ranks } else { bytes };
                samples.entry((share, index)).or_default().push(micros);
            }
        }
    }
    let mut times = Times::new();
    for ((share, index), mut micros) in samples {
        micros.sort_by(f64::total_cmp);
        times.entry(share).or_default().push((rows[index], micros[micros.len() / 2]));
    }
    Ok(times)
}

/// Whether sizes are those of all shares together.
fn is_total(collective: Collective) -> bool {
    !matches!(collective, Collective::AllReduce | Collective::Broadcast | Collective::Reduce)
}

/// (bytes, microseconds) of one algorithm over sizes.
fn perf(
    arguments: &Arguments,
    row: &Algorithm,
    transport: &str,
    ranks: usize,
) -> Result<Vec<(usize, f64)>, String> {
    let file = std::env::temp_dir().join(format!("unisono-tune-{}.json", std::process::id()));
    let ended = Command::new("/proc/self/exe")
        .args(["perf", row.collective.name(), "--no-floor", "-c", "0", "-f", "4", "-b", "8", "-N"])
        .arg(ranks.to_string())
        .args(["--transport", transport, "--algo", row.name, "-e"])
        .arg(arguments.max_bytes.to_string())
        .arg("-J")
        .arg(&file)
        .stdout(Stdio::null())
        .status()
        .map_err(|error| error.to_string())?;
    if !ended.success() {
        return Err(format!("{} {} over {transport} failed", row.collective, row.name));
    }
    let times = read(&file);
    // What is left over would only be one small file.
    let _ = std::fs::remove_file(&file);
    times
}

fn read(file: &Path) -> Result<Vec<(usize, f64)>, String> {
    let text = std::fs::read_to_string(file).map_err(|error| error.to_string())?;
    let document: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let results = document["results"].as_array().ok_or("no results")?;
    let time = |result: &Value| {
        let size = result["size"].as_u64()? as usize;
        let halves = ["out_of_place", "in_place"].into_iter();
        Some((size, halves.filter_map(|half| result[half]["time"].as_f64()).next()?))
    };
    Ok(results.iter().filter_map(time).collect())
}

/// The fastest at each size, sizes with the same one together. The one before stays where it is as good as any.
fn fastest(times: &Times, medium: Medium, ranks_max: usize) -> Vec<Choice> {
    let mut choices: Vec<Choice> = Vec::new();
    for (&bytes, rows) in times {
        let best = rows.iter().map(|&(_, micros)| micros).fold(f64::INFINITY, f64::min);
        let good = |algorithm: &Algorithm| {
            rows.iter().any(|&(row, micros)| std::ptr::eq(row, algorithm) && micros <= best * AS_GOOD)
        };
        let Some(&(winner, _)) = rows.iter().find(|&&(_, micros)| micros == best) else {
            continue;
        };
        match choices.last_mut() {
            Some(last) if good(last.algorithm) => last.bytes_max = bytes,
            Some(last) => {
                // Between two sizes the change is half way, as factors go.
                last.bytes_max = last.bytes_max.saturating_mul(2).min(bytes);
                choices.push(Choice { medium, ranks_max, bytes_max: bytes, algorithm: winner });
            }
            None => choices.push(Choice { medium, ranks_max, bytes_max: bytes, algorithm: winner }),
        }
    }
    if let Some(last) = choices.last_mut() {
        last.bytes_max = ANY;
    }
    choices
}

/// Times so close are equal: repetitions of one measurement differ by more.
const AS_GOOD: f64 = 1.08;

#[cfg(test)]
mod tests {
    use super::*;
    use unisono::schedule::find;

    #[test]
    fn thresholds_lie_between_the_sizes_and_ties_change_nothing() {
        let row = |name| find(Collective::AllReduce, name).unwrap();
        let times: Times = [
            (8, vec![(row("ring"), 9.0), (row("tree"), 1.0)]),
            (32, vec![(row("ring"), 1.0), (row("tree"), 1.04)]),
            (128, vec![(row("ring"), 1.0), (row("tree"), 2.0)]),
            (512, vec![(row("ring"), 1.0), (row("tree"), 2.0)]),
        ]
        .into();
        let found = Table::new(fastest(&times, Medium::Messages, 4)).to_string();
        assert_eq!(found, "all_reduce messages 4 64 tree\nall_reduce messages 4 any ring\n");
    }
}
