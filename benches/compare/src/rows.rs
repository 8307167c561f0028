//! Results as lines: everything that a record says is drawn from these.

use crate::case::{Case, Collective, Transport};
use std::fmt::Write as _;
use std::path::Path;

/// One time of one contender in one round, or why there is none.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    pub(crate) round: usize,
    pub(crate) metric: Metric,
    pub(crate) library: String,
    pub(crate) setting: String,
    /// Microseconds, GB/s, or a reason.
    pub(crate) outcome: Result<f64, String>,
    /// Microseconds from the first rank's core to the last one's meanwhile, where that is known.
    pub(crate) flag_latency: Option<f64>,
}

/// What an outcome is about.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Metric {
    /// Microseconds of a collective; zero bytes: of the run as a whole, which failed.
    Collective(Case, usize),
    /// Microseconds that ranks take from launch to end, with one barrier.
    Startup(usize),
    /// GB/s, read and written, of copies past the cache by all cores.
    CopyRate,
    /// Microseconds of one flag from one core to another.
    FlagLatency,
}

/// The contender that is the machine: its times are what the machine allows.
pub(crate) const ROOFLINE: &str = "floor";

const HEADER: &str = "round,transport,collective,ranks,bytes,library,setting,outcome,failure,flag_latency_us";

/// The rows as comma-separated values.
pub(crate) fn to_csv(rows: &[Row]) -> String {
    let mut text = format!("{HEADER}\n");
    for row in rows {
        let (transport, what, ranks, bytes) = match row.metric {
            Metric::Collective(case, bytes) => {
                (case.transport.name(), case.collective.name(), case.ranks, bytes)
            }
            Metric::Startup(ranks) => ("", "startup", ranks, 0),
            Metric::CopyRate => ("", "copy_gbs", 0, 0),
            Metric::FlagLatency => ("", "flag_latency_us", 0, 0),
        };
        let (value, failure) = match &row.outcome {
            Ok(value) => (format!("{value:.4}"), String::new()),
            Err(reason) => (String::new(), sanitize(reason)),
        };
        let (round, who, how) = (row.round, sanitize(&row.library), sanitize(&row.setting));
        let far = row.flag_latency.map_or_else(String::new, |micros| format!("{micros:.3}"));
        let _ =
            writeln!(text, "{round},{transport},{what},{ranks},{bytes},{who},{how},{value},{failure},{far}");
    }
    text
}

/// Reads what [`to_csv`] wrote.
pub(crate) fn from_csv(text: &str) -> Result<Vec<Row>, String> {
    let lines = text.lines().enumerate().skip(1);
    lines
        .map(|(at, line)| parse(line).ok_or_else(|| format!("line {} is no result: {line}", at + 1)))
        .collect()
}

/// Writes the rows so that a file is never half a file.
pub(crate) fn save(path: &Path, rows: &[Row]) -> Result<(), String> {
    let draft = path.with_extension("csv.part");
    let written = std::fs::write(&draft, to_csv(rows)).and_then(|()| std::fs::rename(&draft, path));
    written.map_err(|error| format!("{}: {error}", path.display()))
}

fn parse(line: &str) -> Option<Row> {
    let fields: Vec<&str> = line.split(',').collect();
    let [round, transport, what, ranks, bytes, contender, setting, value, failure, far] = fields[..] else {
        return None;
    };
    let (ranks, bytes) = (ranks.parse().ok()?, bytes.parse().ok()?);
    let what = match what {
        "startup" => Metric::Startup(ranks),
        "copy_gbs" => Metric::CopyRate,
        "flag_latency_us" => Metric::FlagLatency,
        name => {
            let transport =
                [Transport::Shm, Transport::Tcp].into_iter().find(|one| one.name() == transport)?;
            let collective = Collective::ALL.into_iter().find(|one| one.name() == name)?;
            Metric::Collective(Case { transport, collective, ranks }, bytes)
        }
    };
    let outcome = if failure.is_empty() { Ok(value.parse().ok()?) } else { Err(failure.to_owned()) };
    let (contender, setting) = (contender.to_owned(), setting.to_owned());
    let hand_over = if far.is_empty() { None } else { Some(far.parse().ok()?) };
    Some(Row {
        round: round.parse().ok()?,
        metric: what,
        library: contender,
        setting,
        outcome,
        flag_latency: hand_over,
    })
}

/// Without what separates fields and lines.
fn sanitize(text: &str) -> String {
    text.replace(',', ";").replace(['\n', '\r', '|'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_survive_a_file() {
        let case = Case { transport: Transport::Tcp, collective: Collective::AllToAll, ranks: 4 };
        let (contender, setting) = ("a".to_owned(), "b c".to_owned());
        let plain = Row {
            round: 2,
            metric: Metric::CopyRate,
            library: contender,
            setting,
            outcome: Ok(1.0),
            flag_latency: None,
        };
        let row = |what, outcome| Row { metric: what, outcome, ..plain.clone() };
        let rows = [
            row(Metric::Collective(case, 1024), Ok(1.25)),
            row(Metric::Collective(case, 0), Err("did not end".into())),
            row(Metric::Startup(64), Ok(2e6)),
            row(Metric::CopyRate, Ok(38.5)),
            Row { flag_latency: Some(0.25), ..row(Metric::FlagLatency, Ok(0.125)) },
        ];
        assert_eq!(from_csv(&to_csv(&rows)), Ok(rows.to_vec()));
    }

    #[test]
    fn separators_in_reasons_do_no_harm() {
        let row = Row {
            round: 1,
            metric: Metric::CopyRate,
            library: "x".into(),
            setting: String::new(),
            outcome: Err("a, b\nc".into()),
            flag_latency: None,
        };
        let read = from_csv(&to_csv(&[row])).expect("readable");
        assert_eq!(read[0].outcome, Err("a; b c".to_owned()));
    }

    #[test]
    fn nonsense_is_refused_with_its_line() {
        let error = from_csv(&format!("{HEADER}\n1,shm,all_reduce,2,8,x,y,fast,,\n")).expect_err("no number");
        assert!(error.starts_with("line 2"), "{error}");
    }
}
