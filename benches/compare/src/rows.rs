//! Raw results: one row per time or failure. Every table and plot of a record is computed from the
//! rows.

use crate::case::{Case, Collective, Transport};
use crate::load::Load;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// One time of one library in one round, or the reason why there is none.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    pub(crate) round: usize,
    pub(crate) metric: Metric,
    pub(crate) library: String,
    pub(crate) setting: String,
    /// Microseconds, GB/s, or a reason.
    pub(crate) outcome: Result<f64, String>,
    /// One-way flag latency in microseconds between the cores of the first and the last rank, if
    /// measured.
    pub(crate) flag_latency: Option<f64>,
}

/// Kind of a result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Metric {
    /// Microseconds of a collective of so many bytes; zero bytes stand for a run that failed as a
    /// whole.
    Collective(Case, usize),
    /// Microseconds from the launch of so many ranks to their end, with one barrier.
    Startup(usize),
    /// Copy bandwidth of all cores past the cache, in GB/s read plus written.
    CopyRate,
    /// One-way flag latency between two cores, in microseconds.
    FlagLatency,
}

/// Name of the pseudo library whose times are the limits of the machine.
pub(crate) const ROOFLINE: &str = "roofline";

/// One line of `results.csv`; absent values are empty fields.
#[derive(Serialize, Deserialize)]
struct Line {
    round: usize,
    transport: String,
    collective: String,
    ranks: usize,
    bytes: usize,
    library: String,
    setting: String,
    outcome: String,
    failure: String,
    flag_latency_us: String,
    /// Records made before there were loads lack the column.
    #[serde(default)]
    load: String,
}

/// Formats the rows as comma-separated values.
pub(crate) fn to_csv(rows: &[Row]) -> Result<String, String> {
    write_csv(rows.iter().map(Line::from))
}

/// Formats records as comma-separated values, with the field names as the first line.
pub(crate) fn write_csv(records: impl IntoIterator<Item = impl Serialize>) -> Result<String, String> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    records.into_iter().try_for_each(|record| writer.serialize(record)).map_err(|error| error.to_string())?;
    let bytes = writer.into_inner().map_err(|error| error.to_string())?;
    String::from_utf8(bytes).map_err(|error| error.to_string())
}

/// Parses the output of [`to_csv`]; an error names the line.
pub(crate) fn from_csv(text: &str) -> Result<Vec<Row>, String> {
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let lines = reader.deserialize::<Line>().enumerate();
    lines
        .map(|(index, line)| {
            let line = line.map_err(|error| error.to_string())?;
            line.row().ok_or_else(|| format!("record {} of results.csv is not a result", index + 1))
        })
        .collect()
}

/// Writes the rows to a temporary file and renames it, so that a reader never sees half a file.
pub(crate) fn save(path: &Path, rows: &[Row]) -> Result<(), String> {
    let draft = path.with_extension("csv.part");
    let written = std::fs::write(&draft, to_csv(rows)?).and_then(|()| std::fs::rename(&draft, path));
    written.map_err(|error| format!("{}: {error}", path.display()))
}

impl From<&Row> for Line {
    fn from(row: &Row) -> Self {
        let quiet = Load::QUIET;
        let (transport, collective, ranks, bytes, load) = match row.metric {
            Metric::Collective(case, bytes) => {
                (case.transport.name(), case.collective.name(), case.ranks, bytes, case.load)
            }
            Metric::Startup(ranks) => ("", "startup", ranks, 0, quiet),
            Metric::CopyRate => ("", "copy_gbs", 0, 0, quiet),
            Metric::FlagLatency => ("", "flag_latency_us", 0, 0, quiet),
        };
        let (outcome, failure) = match &row.outcome {
            Ok(value) => (format!("{value:.4}"), String::new()),
            Err(reason) => (String::new(), reason.clone()),
        };
        Self {
            round: row.round,
            transport: transport.to_owned(),
            collective: collective.to_owned(),
            ranks,
            bytes,
            library: row.library.clone(),
            setting: row.setting.clone(),
            outcome,
            failure,
            flag_latency_us: row.flag_latency.map_or_else(String::new, |micros| format!("{micros:.3}")),
            load: load.key(),
        }
    }
}

impl Line {
    fn row(self) -> Option<Row> {
        let metric = match self.collective.as_str() {
            "startup" => Metric::Startup(self.ranks),
            "copy_gbs" => Metric::CopyRate,
            "flag_latency_us" => Metric::FlagLatency,
            name => {
                let mut transports = [Transport::Shm, Transport::Tcp].into_iter();
                let transport = transports.find(|transport| transport.name() == self.transport)?;
                let collective = Collective::ALL.into_iter().find(|collective| collective.name() == name)?;
                let load = self.load.parse().ok()?;
                Metric::Collective(Case { transport, collective, ranks: self.ranks, load }, self.bytes)
            }
        };
        let outcome =
            if self.failure.is_empty() { Ok(self.outcome.parse().ok()?) } else { Err(self.failure) };
        let flag_latency = match self.flag_latency_us.as_str() {
            "" => None,
            micros => Some(micros.parse().ok()?),
        };
        let (round, library, setting) = (self.round, self.library, self.setting);
        Some(Row { round, metric, library, setting, outcome, flag_latency })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_survive_a_file() {
        let load = Load { busy: 2, nice: 10, jobs: 0, quota: Some(50) };
        let case = Case { transport: Transport::Tcp, collective: Collective::AllToAll, ranks: 4, load };
        let (library, setting) = ("a".to_owned(), "b c".to_owned());
        let plain = Row {
            round: 2,
            metric: Metric::CopyRate,
            library,
            setting,
            outcome: Ok(1.0),
            flag_latency: None,
        };
        let row = |what, outcome| Row { metric: what, outcome, ..plain.clone() };
        let rows = [
            row(Metric::Collective(case, 1024), Ok(1.25)),
            row(Metric::Collective(Case { load: Load::QUIET, ..case }, 1024), Ok(0.5)),
            row(Metric::Collective(case, 0), Err("did not end".into())),
            row(Metric::Startup(64), Ok(2e6)),
            row(Metric::CopyRate, Ok(38.5)),
            Row { flag_latency: Some(0.25), ..row(Metric::FlagLatency, Ok(0.125)) },
        ];
        assert_eq!(from_csv(&to_csv(&rows).expect("text")), Ok(rows.to_vec()));
    }

    #[test]
    fn separators_in_reasons_survive_a_file() {
        let row = Row {
            round: 1,
            metric: Metric::CopyRate,
            library: "x".into(),
            setting: String::new(),
            outcome: Err("a, b\nc".into()),
            flag_latency: None,
        };
        let read = from_csv(&to_csv(&[row]).expect("text")).expect("readable");
        assert_eq!(read[0].outcome, Err("a, b\nc".to_owned()));
    }

    #[test]
    fn from_csv_error_names_the_record() {
        let header = "round,transport,collective,ranks,bytes,library,setting,outcome,failure,flag_latency_us";
        let error = from_csv(&format!("{header}\n1,shm,all_reduce,2,8,x,y,fast,,\n")).expect_err("no number");
        assert!(error.starts_with("record 1"), "{error}");
        let error =
            from_csv(&format!("{header}\n1,shm,all_reduce,two,8,x,y,1.0,,\n")).expect_err("no number");
        assert!(error.contains("line: 2"), "{error}");
    }
}
