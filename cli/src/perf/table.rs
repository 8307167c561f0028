//! nccl-tests' table.

use super::args::Arguments;
use super::bench::{Row, Timing};
use crate::perf::op_case::OpKind;
use crate::perf::roofline::Roofline;
use unisono::Communicator;

/// Lines that say what was measured, and the heads of the columns.
pub(super) fn head(arguments: &Arguments, comm: &Communicator, roofline: Option<&Roofline>) {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    println!("# unisono {} {}", env!("CARGO_PKG_VERSION"), arguments.collective.name());
    println!(
        "# {} ranks over {}{} on {cores} cores, {}; algorithm {}",
        comm.size(),
        comm.transport(),
        if comm.config().encryption { ", TCP encrypted," } else { "" },
        comm.config().host,
        if arguments.compare.is_some() { "compared" } else { &arguments.algo }
    );
    println!("# copies and reductions on the host: {}", unisono_reducers::instruction_set());
    if let Some(roofline) = roofline {
        println!("# roofline measured now: {roofline}");
    }
    let spread = if arguments.per_iteration { "   i_min   i_max   i_p99  i_cv%" } else { "" };
    let share = if arguments.report_roofline { "  bound(us)  share" } else { "" };
    println!("#");
    println!("#{:>11}{:>13}{:>10}{:>8}{:>6}{:>30}{:>32}", "", "", "", "", "", "out-of-place", "in-place");
    println!(
        "#{:>11}{:>13}{:>10}{:>8}{:>6}{:>11}{:>8}{:>8}{:>7}{:>11}{:>8}{:>8}{:>7}{spread}{share}  algo",
        "size",
        "count",
        "type",
        "redop",
        "root",
        "time",
        "algbw",
        "busbw",
        "#wrong",
        "time",
        "algbw",
        "busbw",
        "#wrong"
    );
    println!(
        "#{:>11}{:>13}{:>10}{:>8}{:>6}{:>11}{:>8}{:>8}{:>7}{:>11}{:>8}{:>8}",
        "(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(GB/s)", "(GB/s)"
    );
}

/// Prints one row.
pub(super) fn row(arguments: &Arguments, row: &Row, roofline: Option<&Roofline>) {
    let op = if row.test.kind.reduces() { row.test.op.name() } else { "none" };
    let root = if row.test.kind.has_root() { row.test.root.to_string() } else { "-1".to_owned() };
    print!(" {:>11}{:>13}{:>10}{op:>8}{root:>6}", row.size, row.count, row.dtype);
    print!("{}", format_half(row, row.out_of_place.as_ref()));
    print!("{}", format_half(row, row.in_place.as_ref()));
    if let (true, Some(spread)) = (arguments.per_iteration, row.timing().spread) {
        print!("{:>8.2}{:>8.2}{:>8.2}{:>7.1}", spread.min, spread.max, spread.p99, spread.cv);
    }
    if let (true, Some(roofline)) = (arguments.report_roofline, roofline) {
        let least = row.roofline_micros(roofline);
        print!("{least:>11.2}{:>6.0}%", least / row.timing().micros * 100.0);
    }
    println!("  {}", row.algorithm);
}

fn format_half(row: &Row, timing: Option<&Timing>) -> String {
    let Some(timing) = timing else {
        return format!("{:>11}{:>8}{:>8}{:>7}", "N/A", "N/A", "N/A", "N/A");
    };
    let (algorithm, bus) = bandwidths(row, timing);
    let wrong = timing.wrong.map_or_else(|| "N/A".to_owned(), |wrong| wrong.to_string());
    format!("{:>11.2}{algorithm:>8.2}{bus:>8.2}{wrong:>7}", timing.micros)
}

/// (algorithm, bus) bandwidth in GB/s.
pub(super) fn bandwidths(row: &Row, timing: &Timing) -> (f64, f64) {
    let algorithm = OpKind::bandwidth(row.size, timing.micros);
    (algorithm, algorithm * row.test.kind.bus_factor(row.ranks))
}

/// Summary of all rows.
pub(super) struct Summary {
    pub(super) out_of_bounds: u64,
    pub(super) wrong: u64,
    pub(super) average_bus_bandwidth: f64,
}

impl Summary {
    pub(super) fn of(rows: &[Row]) -> Self {
        let timings = || rows.iter().flat_map(|row| [row.out_of_place, row.in_place].map(|half| (row, half)));
        let halves: Vec<(&Row, Timing)> = timings().filter_map(|(row, half)| Some((row, half?))).collect();
        let bus: f64 = halves.iter().map(|(row, timing)| bandwidths(row, timing).1).sum();
        Self {
            out_of_bounds: rows.iter().map(|row| row.out_of_bounds).sum(),
            wrong: halves.iter().filter_map(|(_, timing)| timing.wrong).sum(),
            average_bus_bandwidth: bus / halves.len().max(1) as f64,
        }
    }

    pub(super) fn is_ok(&self) -> bool {
        self.out_of_bounds == 0 && self.wrong == 0
    }

    /// Prints the summary; wrong results only where rows are printed as JSON.
    pub(super) fn print(&self, as_json: bool) {
        let word = if self.out_of_bounds == 0 { "OK" } else { "FAILED" };
        if !as_json {
            println!("# Out of bounds values : {} {word}", self.out_of_bounds);
            println!("# Avg bus bandwidth    : {:.4}", self.average_bus_bandwidth);
            println!("#");
        }
        if !self.is_ok() {
            eprintln!("unisono: {} wrong elements, {} out of bounds", self.wrong, self.out_of_bounds);
        }
    }
}
