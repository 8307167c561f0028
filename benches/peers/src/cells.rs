//! What the rows say, cell by cell: medians over rounds, the best setting, the floor.

use crate::case::{Case, Collective, Transport};
use crate::contender::DEFAULTS;
use crate::cores::Cores;
use crate::ours;
use crate::results::Names;
use crate::rows::{FLOOR, Row, What};
use crate::stats::{geometric_mean, median};
use std::collections::{BTreeMap, BTreeSet};

/// A contender in one setting.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Who {
    pub(crate) contender: String,
    pub(crate) setting: String,
}

/// One size of one case.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    pub(crate) case: Case,
    pub(crate) bytes: usize,
    /// How the cores were, of the first and the last rank.
    pub(crate) cores: Option<Cores>,
    /// Medians over the rounds that count, in microseconds.
    pub(crate) times: BTreeMap<Who, f64>,
    /// What the machine allows, in microseconds: the least of all rounds, as noise only adds.
    pub(crate) floor: Option<f64>,
}

/// The best of several.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Best<'a> {
    pub(crate) who: &'a Who,
    pub(crate) micros: f64,
}

/// The limits of the machine: the best of what was measured in all rounds, as noise only lowers them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Limits {
    /// GB/s of copies past the cache by all cores, bytes read plus bytes written.
    pub(crate) copy_rate: f64,
    /// Microseconds of a flag from one core to another.
    pub(crate) hand_over: f64,
}

/// None where nothing was measured.
pub(crate) fn limits(rows: &[Row]) -> Option<Limits> {
    let figures = |what: What| {
        rows.iter().filter(move |row| row.what == what).filter_map(|row| row.outcome.as_ref().ok().copied())
    };
    let copy_rate = figures(What::CopyRate).reduce(f64::max)?;
    let hand_over = figures(What::HandOver).reduce(f64::min)?;
    Some(Limits { copy_rate, hand_over })
}

/// All cells, by case and size. Of times with the cores in different states those in one count: in the one that most times of the
/// case are of, if unisono and a peer have some in it.
pub(crate) fn cells<'a>(rows: impl IntoIterator<Item = &'a Row>) -> Vec<Cell> {
    by_state(rows).into_iter().filter_map(|states| states.into_iter().next()).collect()
}

/// The same cells with the cores in other states.
pub(crate) fn cells_otherwise<'a>(rows: impl IntoIterator<Item = &'a Row>) -> Vec<Cell> {
    by_state(rows).into_iter().flat_map(|states| states.into_iter().skip(1)).collect()
}

/// Every cell in every state in which unisono and a peer have times, the most usual first; if there is none, of all times.
fn by_state<'a>(rows: impl IntoIterator<Item = &'a Row>) -> Vec<Vec<Cell>> {
    let all = rounds(rows);
    let usual = usual(&all);
    let states = |(&(case, bytes), rounds): (&(Case, usize), &Rounds)| {
        let both = usual[&case].into_iter().filter(|&cores| rounds.are_both(cores));
        let cells: Vec<Cell> = both.map(|cores| rounds.cell(case, bytes, Some(cores))).collect();
        if cells.is_empty() { vec![rounds.cell(case, bytes, None)] } else { cells }
    };
    all.iter().map(states).collect()
}

/// For each case, the states that the cores were in, the one of most times first.
fn usual(all: &BTreeMap<(Case, usize), Rounds>) -> BTreeMap<Case, [Cores; 3]> {
    let mut cases: BTreeMap<Case, BTreeMap<Cores, usize>> = BTreeMap::new();
    for ((case, _), rounds) in all {
        let counts = cases.entry(*case).or_default();
        for cores in rounds.times.values().flatten().filter_map(|(cores, _)| *cores) {
            *counts.entry(cores).or_default() += 1;
        }
    }
    let sorted = |counts: BTreeMap<Cores, usize>| {
        let mut states = Cores::ALL;
        states.sort_by_key(|cores| std::cmp::Reverse(counts.get(cores).copied()));
        states
    };
    cases.into_iter().map(|(case, counts)| (case, sorted(counts))).collect()
}

fn rounds<'a>(rows: impl IntoIterator<Item = &'a Row>) -> BTreeMap<(Case, usize), Rounds> {
    let mut cells: BTreeMap<(Case, usize), Rounds> = BTreeMap::new();
    for row in rows {
        let (What::Cell(case, bytes), &Ok(micros)) = (row.what, &row.outcome) else {
            continue;
        };
        let rounds = cells.entry((case, bytes)).or_default();
        if row.contender == FLOOR {
            rounds.floor = Some(rounds.floor.map_or(micros, |least| least.min(micros)));
        } else {
            let who = Who { contender: row.contender.clone(), setting: row.setting.clone() };
            rounds.times.entry(who).or_default().push((row.hand_over.map(Cores::of), micros));
        }
    }
    cells
}

/// A cell in the making: times with how the cores were, where that is known.
#[derive(Default)]
struct Rounds {
    times: BTreeMap<Who, Vec<(Option<Cores>, f64)>>,
    floor: Option<f64>,
}

impl Rounds {
    /// Medians over the rounds in one state, if there is a choice; in an unknown one in any case.
    fn cell(&self, case: Case, bytes: usize, cores: Option<Cores>) -> Cell {
        let counts = |found: Option<Cores>| cores.is_none() || found.is_none() || found == cores;
        let counted = |times: &[(Option<Cores>, f64)]| {
            median(times.iter().filter(|(found, _)| counts(*found)).map(|&(_, micros)| micros))
        };
        let times = self.times.iter().filter_map(|(who, times)| Some((who.clone(), counted(times)?)));
        Cell { case, bytes, cores, times: times.collect(), floor: self.floor }
    }

    /// Whether unisono and a peer were measured with the cores so.
    fn are_both(&self, cores: Cores) -> bool {
        let has = |of: &dyn Fn(&str) -> bool| {
            let times = self.times.iter().filter(|(who, _)| of(&who.contender));
            times.flat_map(|(_, times)| times).any(|(found, _)| *found == Some(cores))
        };
        has(&|name| name == ours::NAME) && has(&|name| !is_ours(name))
    }
}

impl Cell {
    /// The best setting of one contender.
    pub(crate) fn best_of(&self, contender: &str) -> Option<Best<'_>> {
        self.best(|who| who.contender == contender)
    }

    /// The best of all that are not unisono.
    pub(crate) fn best_peer(&self) -> Option<Best<'_>> {
        self.best(|who| !is_ours(&who.contender))
    }

    /// One contender in the setting that nobody tuned; over TCP, the one for that.
    pub(crate) fn defaults_of(&self, contender: &str) -> Option<Best<'_>> {
        let untuned = |who: &Who| [DEFAULTS, "TCP"].contains(&who.setting.as_str());
        self.best(|who| who.contender == contender && untuned(who))
    }

    pub(crate) fn ours(&self) -> Option<f64> {
        self.best_of(ours::NAME).map(|best| best.micros)
    }

    /// How many times faster unisono is than the best peer: above one is a cell won.
    pub(crate) fn ratio(&self) -> Option<f64> {
        Some(self.best_peer()?.micros / self.ours()?)
    }

    /// The median of one contender in one setting.
    pub(crate) fn time_of(&self, (contender, setting): Names<'_>) -> Option<f64> {
        let is_it = |who: &Who| (who.contender.as_str(), who.setting.as_str()) == (contender, setting);
        self.best(is_it).map(|best| best.micros)
    }

    fn best(&self, counts: impl Fn(&Who) -> bool) -> Option<Best<'_>> {
        let those = self.times.iter().filter(|(who, _)| counts(who));
        those
            .map(|(who, &micros)| Best { who, micros })
            .min_by(|left, right| left.micros.total_cmp(&right.micros))
    }
}

/// Whether a contender is unisono, in ordinary buffers or others.
pub(crate) fn is_ours(contender: &str) -> bool {
    [ours::NAME, ours::WINDOW].contains(&contender)
}

/// The geometric mean of how many times faster unisono is, over the cells that have both.
pub(crate) fn mean_against<'a>(
    cells: impl IntoIterator<Item = &'a Cell>,
    least_bytes: usize,
    other: impl Fn(&'a Cell) -> Option<Best<'a>>,
) -> Option<f64> {
    let large = cells.into_iter().filter(|cell| cell.bytes >= least_bytes);
    geometric_mean(large.filter_map(|cell| Some(other(cell)?.micros / cell.ours()?)))
}

/// The contenders that have a time in any of the cells.
pub(crate) fn contenders(cells: &[&Cell]) -> BTreeSet<String> {
    cells.iter().flat_map(|cell| cell.times.keys()).map(|who| who.contender.clone()).collect()
}

/// The cells of each (transport, collective), in order.
pub(crate) fn grouped(cells: &[Cell]) -> BTreeMap<(Transport, Collective), Vec<&Cell>> {
    let mut groups: BTreeMap<_, Vec<&Cell>> = BTreeMap::new();
    for cell in cells {
        groups.entry((cell.case.transport, cell.case.collective)).or_default().push(cell);
    }
    groups
}

/// Medians as comma-separated values.
pub(crate) fn to_csv(cells: &[Cell]) -> String {
    let mut text = "transport,collective,ranks,bytes,contender,setting,time_us,floor_us\n".to_owned();
    for cell in cells {
        let Case { transport, collective, ranks } = cell.case;
        let floor = cell.floor.map_or_else(String::new, |floor| format!("{floor:.4}"));
        for (who, micros) in &cell.times {
            let (transport, collective, bytes) = (transport.name(), collective.name(), cell.bytes);
            let Who { contender, setting } = who;
            text += &format!(
                "{transport},{collective},{ranks},{bytes},{contender},{setting},{micros:.4},{floor}\n"
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const CASE: Case = Case { transport: Transport::Shm, collective: Collective::AllReduce, ranks: 2 };

    fn row(round: usize, contender: &str, setting: &str, bytes: usize, outcome: Result<f64, String>) -> Row {
        let (contender, setting) = (contender.to_owned(), setting.to_owned());
        Row { round, what: What::Cell(CASE, bytes), contender, setting, outcome, hand_over: None }
    }

    fn rows() -> Vec<Row> {
        let mut rows = vec![
            row(1, "unisono", "auto", 1 << 20, Ok(100.0)),
            row(2, "unisono", "auto", 1 << 20, Ok(500.0)),
            row(3, "unisono", "auto", 1 << 20, Ok(110.0)),
            row(1, "unisono window", "auto", 1 << 20, Ok(1.0)),
            row(1, "Open MPI 5", "defaults", 1 << 20, Ok(330.0)),
            row(1, "Open MPI 5", "UCX", 1 << 20, Ok(220.0)),
            row(1, "Gloo", "defaults", 1 << 20, Ok(880.0)),
            row(1, "MPICH 5", "defaults", 0, Err("did not end".into())),
            row(1, "unisono", "auto", 8, Ok(0.4)),
            row(1, "Open MPI 5", "defaults", 8, Ok(0.2)),
        ];
        rows.extend([105.0, 104.0].map(|micros| row(1, FLOOR, "", 1 << 20, Ok(micros))));
        let figure = |what, value| Row { what, ..row(1, FLOOR, "", 0, Ok(value)) };
        let figures = [(What::CopyRate, 20.0), (What::CopyRate, 40.0), (What::HandOver, 0.2)];
        rows.extend(figures.map(|(what, value)| figure(what, value)));
        rows
    }

    #[test]
    fn a_cell_has_medians_and_the_best_setting_counts() {
        let cells = cells(&rows());
        assert_eq!(cells.iter().map(|cell| cell.bytes).collect::<Vec<_>>(), [8, 1 << 20]);
        let cell = &cells[1];
        assert_eq!((cell.ours(), cell.ratio()), (Some(110.0), Some(2.0)));
        let best = cell.best_peer().expect("three");
        assert_eq!((best.who.contender.as_str(), best.who.setting.as_str()), ("Open MPI 5", "UCX"));
        assert_eq!(cell.defaults_of("Open MPI 5").map(|best| best.micros), Some(330.0));
        assert!(cell.best_of("MPICH 5").is_none());
    }

    #[test]
    fn like_is_compared_with_like_in_the_state_that_most_times_are_of() {
        let at = |hand_over, contender, micros| Row {
            hand_over: Some(hand_over),
            ..row(1, contender, "auto", 8, Ok(micros))
        };
        let mut rows = vec![at(0.05, "unisono", 0.2), at(0.3, "unisono", 0.4)];
        assert_eq!(cells(&rows)[0].ours(), median([0.2, 0.4]));
        rows.push(at(0.3, "MPICH 5", 0.6));
        assert_eq!((cells(&rows)[0].ratio(), cells_otherwise(&rows).len()), (Some(0.6 / 0.4), 0));
        let near = |micros| at(0.05, "MPICH 5", micros);
        rows.extend([near(0.3), near(0.5), row(1, "Gloo", "defaults", 8, Ok(90.0))]);
        let usual = &cells(&rows)[0];
        assert_eq!(
            (usual.cores, usual.ours(), usual.ratio()),
            (Some(Cores::Near), Some(0.2), Some(0.4 / 0.2))
        );
        assert!(usual.best_of("Gloo").is_some());
        let otherwise = cells_otherwise(&rows);
        assert_eq!((otherwise.len(), otherwise[0].ratio()), (1, Some(0.6 / 0.4)));
    }

    #[test]
    fn limits_are_the_best_of_all_rounds() {
        let cells = cells(&rows());
        assert_eq!((cells[0].floor, cells[1].floor), (None, Some(104.0)));
        assert_eq!(limits(&rows()), Some(Limits { copy_rate: 40.0, hand_over: 0.2 }));
        assert_eq!(limits(&[]), None);
    }

    #[test]
    fn means_are_over_cells_that_have_both_and_are_large_enough() {
        let cells = cells(&rows());
        let against = |least, who| mean_against(&cells, least, move |cell| cell.best_of(who));
        let close = |found: Option<f64>, value: f64| (found.expect("cells") - value).abs() < 1e-9;
        assert!(close(against(1 << 20, "Open MPI 5"), 2.0));
        assert!(close(against(0, "Open MPI 5"), 1.0));
        assert!(close(against(0, "Gloo"), 8.0));
        assert_eq!(against(0, "oneCCL"), None);
    }
}
