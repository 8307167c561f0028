//! The README of a record.

use crate::case::{Case, Collective, Transport};
use crate::data_points::{
    Best, DataPoint, Limits, data_points, data_points_of_other_placements, geometric_mean_vs, grouped,
    is_unisono, limits,
};
use crate::library::InstalledLibrary;
use crate::load::Load;
use crate::load_report;
use crate::machine::Machine;
use crate::plot::{Axis, file_name};
use crate::rows::{Metric, ROOFLINE, Row};
use crate::unisono;
use std::collections::{BTreeMap, BTreeSet};
use unisono_bench_support::size;
use unisono_bench_support::stats::{geometric_mean, median};

/// Header of a report.
pub(crate) struct ReportInfo<'a> {
    pub(crate) machine: &'a Machine,
    pub(crate) unisono: String,
    pub(crate) peers: &'a [InstalledLibrary],
    /// Name and reason of libraries that are not here.
    pub(crate) missing: &'a [(&'static str, String)],
    pub(crate) command: String,
    pub(crate) budget_ms: u128,
    pub(crate) limit_s: u64,
    /// About the shares of ranks and load.
    pub(crate) shares: &'static str,
    /// The files of plots that were drawn.
    pub(crate) plots: BTreeSet<String>,
}

/// The whole text.
pub(crate) fn readme(about: &ReportInfo<'_>, rows: &[Row]) -> String {
    let points = data_points(rows);
    let mut text = head(about, limits(rows)) + &method(about) + &single_round_note(rows);
    let quiet: Vec<DataPoint> = points.iter().filter(|point| point.case.load.is_quiet()).cloned().collect();
    if !quiet.is_empty() {
        text += &summary(&grouped(&quiet));
    }
    text += &startup(rows);
    text += &load_report::sections(&points, rows, about.shares);
    if !quiet.is_empty() {
        for ((transport, collective), points) in &grouped(&quiet) {
            text += &section(*transport, *collective, points, &about.plots);
        }
        text += &slower(&quiet);
        // Only quiet runs find out where the cores are.
        text += &other_placements(&data_points_of_other_placements(rows));
    }
    text + &failures(rows)
}

fn head(about: &ReportInfo<'_>, limits: Option<Limits>) -> String {
    let Machine { cpu, cores, caches, memory_gib, kernel, date } = about.machine;
    let mut text = format!("# unisono beside other libraries, {date}\n\n");
    text += &format!(
        "Written by `{}`.\n\n{cpu}, {cores} cores; {} for a core; {memory_gib:.1} GiB; Linux {kernel}.\n",
        about.command,
        caches.join(", ")
    );
    if let Some(Limits { copy_rate, flag_latency }) = limits {
        text += &format!(
            "Copies past the cache by all cores move {copy_rate:.1} GB/s (read plus written); a flag takes \
             {flag_latency:.2} µs from core to core.\n"
        );
    }
    text += &format!("\n| library | version |\n|---|---|\n| unisono | {} |\n", about.unisono);
    for peer in about.peers {
        text += &format!("| {} | {} |\n", peer.library.name(), peer.version);
    }
    for (name, reason) in about.missing {
        text += &format!("| {name} | not here: {} |\n", reason.replace('|', " "));
    }
    text
}

fn method(about: &ReportInfo<'_>) -> String {
    let (budget, limit) = (about.budget_ms, about.limit_s);
    format!(
        "\nfloat32, sum, out of place (Gloo: all_reduce in place, it has no other), ordinary buffers that begin at a \
         page. A sample is a barrier, then calls back to back worth about 1 ms; the slowest rank counts; the median over \
         samples worth {budget} ms, but at least three, is the time of a round; sizes whose three samples would take \
         more than {limit} s are skipped, and listed at the end; the median over rounds, in which all take turns, stands \
         in the tables; data points where unisono and the best peer are close have further rounds (`--more`). Rounds are \
         compared that found the cores in the same state. Results are \
         verified once for each size. Sizes are nccl-tests': totals for all_gather, reduce_scatter and all_to_all. Of several settings of a library its best per data point counts. *Ratio* is the \
         best peer's time over unisono's: below 1 unisono is slower. The *roofline* is what `unisono perf --report-roofline` \
         says that the machine allows: in shared memory the least traffic, every input read once and every output \
         written once, at the rate of copies past the cache, or one flag latency. What stays in the cache may be faster.\n"
    )
}

/// Formats the number of peer times that come from a single round, and the reason.
fn single_round_note(rows: &[Row]) -> String {
    let mut rounds: BTreeMap<(&str, &str, String, usize), usize> = BTreeMap::new();
    for row in rows.iter().filter(|row| !is_unisono(&row.library) && row.library != ROOFLINE) {
        if let (Metric::Collective(case, bytes), Ok(_)) = (row.metric, &row.outcome) {
            *rounds.entry((&row.library, &row.setting, case.to_string(), bytes)).or_default() += 1;
        }
    }
    let once = rounds.values().filter(|&&rounds| rounds == 1).count();
    if once == 0 || once == rounds.len() {
        return String::new();
    }
    format!(
        "\n{once} of the peers' {} times are of one round: after it they measured only sizes in which they had come \
         near the best of them (`--within`).\n",
        rounds.len()
    )
}

type Groups<'a> = BTreeMap<(Transport, Collective), Vec<&'a DataPoint>>;

fn summary(groups: &Groups<'_>) -> String {
    let mut text = "\n## Geometric means\n\nHow many times faster unisono is.\n\n".to_owned();
    text += "| transport | collective | data points | slower | best peer, all sizes | best peer, from 1 MiB \
             | Open MPI 5 defaults, from 1 MiB | Open MPI 4 defaults, from 1 MiB | Gloo, from 1 MiB \
             | share of the roofline, from 1 MiB |\n|---|---|--:|--:|--:|--:|--:|--:|--:|--:|\n";
    for ((transport, collective), points) in groups {
        let mean = |least, other: &dyn for<'c> Fn(&'c DataPoint) -> Option<crate::data_points::Best<'c>>| {
            format_ratio(geometric_mean_vs(points.iter().copied(), least, other))
        };
        let ratios: Vec<f64> = points.iter().filter_map(|point| point.speedup()).collect();
        let slower = ratios.iter().filter(|&&ratio| ratio < 1.0).count();
        let large = points.iter().filter(|point| point.bytes >= MEBIBYTE);
        let share = geometric_mean(large.filter_map(|point| Some(point.roofline? / point.unisono_micros()?)));
        text += &format!(
            "| {} | {} | {} | {slower} | {} | {} | {} | {} | {} | {} |\n",
            transport.name(),
            collective.name(),
            ratios.len(),
            mean(0, &DataPoint::best_peer),
            mean(MEBIBYTE, &DataPoint::best_peer),
            mean(MEBIBYTE, &|point| point.defaults_of("Open MPI 5")),
            mean(MEBIBYTE, &|point| point.defaults_of("Open MPI 4")),
            mean(MEBIBYTE, &|point| point.best_of("Gloo")),
            format_percent(share),
        );
    }
    text
}

fn startup(rows: &[Row]) -> String {
    let mut walls: BTreeMap<(&str, usize), Vec<f64>> = BTreeMap::new();
    for row in rows {
        if let (Metric::Startup(ranks), Ok(micros)) = (row.metric, &row.outcome) {
            walls.entry((&row.library, ranks)).or_default().push(*micros);
        }
    }
    if walls.is_empty() {
        return String::new();
    }
    let mut text =
        "\n## Startup\n\nFrom the launch of a local job to its end, with one barrier; medians.\n\n\
                    | library | ranks | seconds |\n|---|--:|--:|\n"
            .to_owned();
    for ((name, ranks), walls) in walls {
        let seconds = median(walls).unwrap_or_default() / 1e6;
        text += &format!("| {name} | {ranks} | {seconds:.2} |\n");
    }
    text
}

fn section(
    transport: Transport,
    collective: Collective,
    points: &[&DataPoint],
    plots: &BTreeSet<String>,
) -> String {
    let window = points.iter().any(|point| point.best_of(unisono::SYMMETRIC).is_some());
    let (title, line) = if window { (" window, µs |", "--:|") } else { ("", "") };
    let mut text = format!(
        "\n## {}, {}\n\n| ranks | size | unisono, µs |{title} best peer, µs | who | ratio | roofline, µs | share |\n\
         |--:|--:|--:|{line}--:|---|--:|--:|--:|\n",
        collective.name(),
        transport.name()
    );
    for point in points {
        text += &row(point, window);
    }
    text.push('\n');
    let ranks: BTreeSet<usize> = points.iter().map(|point| point.case.ranks).collect();
    for case in ranks.into_iter().map(|ranks| Case { transport, collective, ranks, load: Load::QUIET }) {
        for file in Axis::BOTH.map(|axis| file_name(case, axis)).iter().filter(|file| plots.contains(*file)) {
            text += &format!("![{case}]({file})\n");
        }
    }
    text
}

fn row(point: &DataPoint, window: bool) -> String {
    let best = point.best_peer();
    let who = format_source(best);
    let window = if window {
        format!(" {} |", format_figure(point.best_of(unisono::SYMMETRIC).map(|best| best.micros)))
    } else {
        String::new()
    };
    format!(
        "| {}{} | {} | {} |{window} {} | {who} | {} | {} | {} |\n",
        point.case.ranks,
        point.placement.map_or_else(String::new, |cores| format!(", {cores}")),
        size::show(point.bytes),
        format_figure(point.unisono_micros()),
        format_figure(best.map(|best| best.micros)),
        format_ratio(point.speedup()),
        format_figure(point.roofline),
        format_percent(point.roofline.zip(point.unisono_micros()).map(|(roofline, ours)| roofline / ours)),
    )
}

fn slower(points: &[DataPoint]) -> String {
    let mut slower: Vec<(f64, &DataPoint)> = points
        .iter()
        .filter_map(|point| Some((point.speedup()?, point)))
        .filter(|(ratio, _)| *ratio < 1.0)
        .collect();
    slower.sort_by(|point, other| point.0.total_cmp(&other.0));
    let compared = points.iter().filter(|point| point.speedup().is_some()).count();
    let mut text =
        format!("\n## Slower than the best peer\n\n{} of {compared}, the worst first.\n", slower.len());
    if !slower.is_empty() {
        text += "\n| case | size | ratio | than |\n|---|--:|--:|---|\n";
    }
    for (ratio, point) in slower {
        let who = point.best_peer().map_or(NONE, |best| best.source.library.as_str());
        text += &format!("| {} | {} | {ratio:.2} | {who} |\n", point.case, size::show(point.bytes));
    }
    text
}

/// Cells with the cores in states that count nowhere else.
fn other_placements(points: &[DataPoint]) -> String {
    let ratios = points.iter().filter_map(|point| Some((point, point.best_peer()?, point.speedup()?)));
    let ratios: Vec<_> = ratios.collect();
    if ratios.is_empty() {
        return String::new();
    }
    let slower = ratios.iter().filter(|(.., ratio)| *ratio < 1.0).count();
    let mean = format_ratio(geometric_mean(ratios.iter().map(|(.., ratio)| *ratio)));
    let mut text = format!(
        "\n## With other core placements\n\nThe host moves the cores: those of the first and the last rank share a cache (near), or none (far), or are two \
         threads of one core. Above, times in the state that most were measured in are compared; here, those in others, often of \
         single rounds: {} data points, {slower} of them slower, the geometric mean {mean}.\n\n\
         | case | cores | size | unisono, µs | best peer, µs | who | ratio |\n|---|---|--:|--:|--:|---|--:|\n",
        ratios.len()
    );
    for (point, best, ratio) in ratios {
        let cores = point.placement.map_or_else(|| NONE.to_owned(), |cores| cores.to_string());
        let (size, who) = (size::show(point.bytes), &best.source.library);
        let (ours, theirs) = (format_figure(point.unisono_micros()), format_figure(Some(best.micros)));
        let case = point.case;
        text += &format!(
            "| {case} | {cores} | {size} | {ours} | {theirs} | {who} | {} |\n",
            format_ratio(Some(ratio))
        );
    }
    text
}

/// Runs that gave no time or not all, and sizes that were skipped, each reason once.
fn failures(rows: &[Row]) -> String {
    let mut failures: BTreeMap<(&str, &str, String, &str), usize> = BTreeMap::new();
    for row in rows {
        if let Err(reason) = &row.outcome {
            let what = match row.metric {
                Metric::Collective(case, 0) => case.to_string(),
                Metric::Collective(case, bytes) => format!("{case}, {}", size::show(bytes)),
                Metric::Startup(ranks) => format!("startup of {ranks} ranks"),
                Metric::CopyRate | Metric::FlagLatency => "roofline".to_owned(),
            };
            *failures.entry((&row.library, &row.setting, what, reason)).or_default() += 1;
        }
    }
    if failures.is_empty() {
        return "\nNo run failed, and no size was skipped.\n".to_owned();
    }
    let mut text =
        "\n## Runs that failed, sizes skipped\n\n| who | case | times | why |\n|---|---|--:|---|\n"
            .to_owned();
    for ((library, setting, what, reason), count) in failures {
        let reason = reason.replace(['\n', '\r', '|'], " ");
        text += &format!("| {library}, {setting} | {what} | {count} | {reason} |\n");
    }
    text
}

/// Three digits, or all before the point.
pub(crate) fn format_figure(value: Option<f64>) -> String {
    match value {
        None => NONE.to_owned(),
        Some(value) if value < 10.0 => format!("{value:.2}"),
        Some(value) if value < 100.0 => format!("{value:.1}"),
        Some(value) => format!("{value:.0}"),
    }
}

/// Formats a ratio; ratios below one are bold.
pub(crate) fn format_ratio(ratio: Option<f64>) -> String {
    match ratio {
        None => NONE.to_owned(),
        Some(ratio) if ratio < 1.0 => format!("**{ratio:.2}**"),
        Some(ratio) => format!("{ratio:.2}"),
    }
}

/// Formats the library and the setting of a best time.
pub(crate) fn format_source(best: Option<Best<'_>>) -> String {
    best.map_or_else(|| NONE.to_owned(), |best| format!("{}, {}", best.source.library, best.source.setting))
}

fn format_percent(share: Option<f64>) -> String {
    share.map_or_else(|| NONE.to_owned(), |share| format!("{:.0} %", share * 100.0))
}

const NONE: &str = "–";
const MEBIBYTE: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    const CASE: Case =
        Case { transport: Transport::Shm, collective: Collective::AllReduce, ranks: 2, load: Load::QUIET };

    fn row(library: &str, what: Metric, outcome: Result<f64, String>) -> Row {
        Row {
            round: 1,
            metric: what,
            library: library.to_owned(),
            setting: "defaults".to_owned(),
            outcome,
            flag_latency: None,
        }
    }

    fn rows() -> Vec<Row> {
        vec![
            row("unisono", Metric::Collective(CASE, 8), Ok(0.5)),
            row("Open MPI 5", Metric::Collective(CASE, 8), Ok(0.25)),
            row("unisono", Metric::Collective(CASE, 1 << 20), Ok(100.0)),
            row("Open MPI 5", Metric::Collective(CASE, 1 << 20), Ok(300.0)),
            row("MPICH 5", Metric::Collective(CASE, 0), Err("did not end within 9 s".to_owned())),
            row("unisono", Metric::Startup(64), Ok(2_500_000.0)),
            row("roofline", Metric::Collective(CASE, 8), Ok(0.1)),
            row("roofline", Metric::Collective(CASE, 1 << 20), Ok(105.0)),
            row("roofline", Metric::CopyRate, Ok(40.0)),
            row("roofline", Metric::FlagLatency, Ok(0.1)),
        ]
    }

    #[test]
    fn table_has_ratio_and_roofline_and_bold_slower() {
        let points = data_points(&rows());
        let text =
            section(CASE.transport, CASE.collective, &points.iter().collect::<Vec<_>>(), &BTreeSet::new());
        assert!(
            text.contains("| 2 | 8 B | 0.50 | 0.25 | Open MPI 5, defaults | **0.50** | 0.10 | 20 % |"),
            "{text}"
        );
        assert!(
            text.contains("| 2 | 1 MiB | 100 | 300 | Open MPI 5, defaults | 3.00 | 105 | 105 % |"),
            "{text}"
        );
    }

    #[test]
    fn report_lists_slower_and_failed() {
        let rows = rows();
        let text = slower(&data_points(&rows)) + &failures(&rows);
        assert!(text.contains("1 of 2, the worst first"), "{text}");
        assert!(text.contains("| all_reduce, 2 ranks, shm | 8 B | 0.50 | Open MPI 5 |"), "{text}");
        let failure = "| MPICH 5, defaults | all_reduce, 2 ranks, shm | 1 | did not end within 9 s |";
        assert!(text.contains(failure), "{text}");
    }

    #[test]
    fn report_counts_single_round_times() {
        assert_eq!(single_round_note(&rows()), "");
        let again = Row { round: 2, ..row("Open MPI 5", Metric::Collective(CASE, 8), Ok(0.25)) };
        let text = single_round_note(&[rows(), vec![again]].concat());
        assert!(text.contains("1 of the peers' 2 times are of one round"), "{text}");
    }

    #[test]
    fn report_lists_skipped_sizes() {
        let skipped =
            row("Gloo", Metric::Collective(CASE, 1 << 20), Err("skipped: a call takes 6.5 s".to_owned()));
        let line = "| Gloo, defaults | all_reduce, 2 ranks, shm, 1 MiB | 1 | skipped: a call takes 6.5 s |";
        let text = failures(&[skipped]);
        assert!(text.contains(line), "{text}");
    }

    #[test]
    fn means_and_startup_are_in_the_text() {
        let rows = rows();
        let text = summary(&grouped(&data_points(&rows))) + &startup(&rows);
        assert!(text.contains("| shm | all_reduce | 2 | 1 | 1.22 | 3.00 | 3.00 | – | – | 105 % |"), "{text}");
        assert!(text.contains("| unisono | 64 | 2.50 |"), "{text}");
    }
}
