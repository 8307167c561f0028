//! `unisono perf all_reduce --memory` reports the memory of a communicator before and after it is
//! used.

use super::args::Arguments;
use unisono::{Communicator, Config, Sum};

/// Stages, and the bytes that are reduced before each of them.
const STAGES: [(&str, usize); 3] = [("idle", 0), ("8 B", 8), ("16 MiB", 16 << 20)];

/// Names of the columns. Some have bytes that the communicator counts itself, and some the growth
/// of the process as the kernel counts it.
const COLUMNS: [&str; 10] =
    ["mapped", "resident", "staging", "plans", "sockets", "fds", "rss", "pss", "anon", "tables"];

/// Memory of one rank at one stage.
type Row = [i64; COLUMNS.len()];

/// Joins the world of the environment and prints the memory of the communicator.
pub(super) fn run(arguments: &Arguments, config: &Config) -> Result<u8, String> {
    // The caller's buffers are allocated before, so that they are not counted.
    let mut values = vec![1.0f32; STAGES[2].1 / size_of::<f32>()];
    let bare = kernel_account()?;
    let comm = Communicator::builder().config(config).from_env().map_err(|error| error.to_string())?;
    let mut rows: Vec<i64> = Vec::with_capacity(STAGES.len() * COLUMNS.len());
    for (_, bytes) in STAGES {
        if bytes > 0 {
            comm.all_reduce(&mut values[..bytes / size_of::<f32>()], Sum)
                .map_err(|error| error.to_string())?;
        }
        rows.extend(row(&comm, &bare)?);
    }
    let mut table = vec![0; rows.len() * comm.size()];
    let gathered = comm.gather(&rows, (comm.rank() == 0).then_some(&mut table[..]), 0);
    gathered.map_err(|error| error.to_string())?;
    if comm.rank() == 0 {
        print(arguments, &comm, &table);
    }
    Ok(0)
}

fn row(comm: &Communicator, bare: &[i64; 4]) -> Result<Row, String> {
    let stats = comm.memory_stats().map_err(|error| error.to_string())?;
    let now = kernel_account()?;
    let counted =
        [stats.mapped, stats.resident, stats.staging, stats.plans, stats.sockets, stats.descriptors];
    let mut row = [0; COLUMNS.len()];
    for (column, value) in row.iter_mut().zip(counted) {
        *column = value as i64;
    }
    for (column, (now, bare)) in row[counted.len()..].iter_mut().zip(now.iter().zip(bare)) {
        *column = now - bare;
    }
    Ok(row)
}

/// Memory of this process as the kernel counts it, in bytes: resident, proportional share (a page
/// mapped by n processes counts 1/n), anonymous, and page tables.
fn kernel_account() -> Result<[i64; 4], String> {
    let read = |path: &str| std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"));
    // Unlike the sums in `status`, these are counted now.
    let (pages, status) = (read("/proc/self/smaps_rollup")?, read("/proc/self/status")?);
    let [rss, pss, anonymous] = ["Rss:", "Pss:", "Anonymous:"].map(|name| bytes_of(&pages, name));
    Ok([rss, pss, anonymous, bytes_of(&status, "VmPTE:")])
}

/// Returns the bytes of a line such as `Rss:  12 kB`, or zero without one.
pub(super) fn bytes_of(text: &str, name: &str) -> i64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let kilobytes = line.and_then(|line| line.split_ascii_whitespace().next()?.parse::<i64>().ok());
    kilobytes.map_or(0, |kilobytes| kilobytes.saturating_mul(1024))
}

fn print(arguments: &Arguments, comm: &Communicator, table: &[i64]) {
    let ranks = comm.size();
    println!("# Memory of {ranks} ranks over {}, KiB; sockets and fds are counts.", comm.transport());
    println!("# mapped to fds: what the communicator counts itself, `Communicator::memory_stats`.");
    println!("# mapped: address space. resident: pages of this rank's shared memory, whoever touched them.");
    println!(
        "# rss to tables: by how much the process has grown since before it joined, says the kernel: pages"
    );
    println!("# mapped (peers' and the program's own too), its share of them, private ones, page tables.");
    println!("#{:>8} {:>7} {}", "stage", "rank", COLUMNS.map(|name| format!("{name:>12}")).join(""));
    for (stage, (name, _)) in STAGES.iter().enumerate() {
        let rows: Vec<&[i64]> = (0..ranks)
            .map(|rank| &table[(rank * STAGES.len() + stage) * COLUMNS.len()..][..COLUMNS.len()])
            .collect();
        if arguments.verbose || ranks <= RANKS_SHOWN_MAX {
            rows.iter().enumerate().for_each(|(rank, row)| line(name, &rank.to_string(), row));
        }
        for (label, place) in [("median", ranks / 2), ("most", ranks - 1)] {
            line(name, label, &nth_of_columns(&rows, place));
        }
        per_peer(name, &nth_of_columns(&rows, ranks / 2), ranks);
    }
}

/// Returns, for each column separately, the value at this place among the sorted values of all
/// ranks.
fn nth_of_columns(rows: &[&[i64]], place: usize) -> Row {
    std::array::from_fn(|column| {
        let mut values: Vec<i64> = rows.iter().map(|row| row[column]).collect();
        values.sort_unstable();
        values[place]
    })
}

fn line(stage: &str, rank: &str, row: &[i64]) {
    let is_count = |name: &str| matches!(name, "sockets" | "fds");
    let text = |(name, value): (&&str, &i64)| match is_count(name) {
        true => format!("{value:>12}"),
        false => format!("{:>12.1}", *value as f64 / 1024.0),
    };
    let columns: String = COLUMNS.iter().zip(row).map(text).collect();
    println!(" {stage:>8} {rank:>7} {columns}");
}

/// Memory of one peer, and of one socket.
fn per_peer(stage: &str, row: &Row, ranks: usize) {
    let [_, resident, staging, plans, sockets, ..] = *row;
    let peers = ranks.saturating_sub(1).max(1) as f64;
    let total = (resident + staging + plans) as f64 / 1024.0;
    print!("#{stage:>8}: {total:.1} KiB in all, {:.1} KiB for each peer", total / peers);
    match sockets {
        0 => println!(", no sockets"),
        _ => println!(", {:.1} KiB of staging for each socket", staging as f64 / 1024.0 / sockets as f64),
    }
}

/// Largest number of ranks that are all shown.
const RANKS_SHOWN_MAX: usize = 8;
