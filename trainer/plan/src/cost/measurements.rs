//! Times of all-reduces, measured here or read from a file, and the rates of this machine.

use crate::cost::Measurement;
#[cfg(any(test, feature = "fuzzing"))]
use crate::cost::{Link, ring};
use crate::file_kind;
use serde_json::Value;
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;
use unisono::schedule::Collective;
use unisono::{Communicator, Sum};
use unisono_nn::error::Result;
use unisono_parallel::mesh::MAX_RANKS;

/// Sizes in bytes that separate latency from bandwidth.
pub(crate) const SIZES: [usize; 6] = [1 << 10, 8 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];

/// Measures ring all-reduces of these sizes. Returns the shortest of several times per size,
/// because other programs can only add time.
///
/// # Errors
/// Returns the error of a failed collective.
pub fn sweep(groups: Vec<Communicator>, sizes: &[usize]) -> Result<Vec<Measurement>> {
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            groups.into_iter().map(|group| scope.spawn(move || points(&group, sizes))).collect();
        let mut results = threads.into_iter().map(|thread| thread.join().expect("no rank panics"));
        results.next().expect("a communicator has ranks")
    })
}

fn points(group: &Communicator, sizes: &[usize]) -> Result<Vec<Measurement>> {
    group.set_algorithm(Collective::AllReduce, Some("ring"))?;
    let point = |&bytes: &usize| {
        let mut values = vec![1.0f32; bytes / 4];
        let mut seconds = f64::INFINITY;
        for _ in 0..ROUNDS {
            // Ranks start together, so that the time has no wait for a late rank.
            group.barrier()?;
            let start = Instant::now();
            group.all_reduce(&mut values, Sum)?;
            // Other programs can only add time.
            seconds = seconds.min(start.elapsed().as_secs_f64());
        }
        Ok(Measurement { bytes: bytes as f64, seconds })
    };
    sizes.iter().map(point).collect()
}

const ROUNDS: usize = 5;

/// Measures the bytes per second that one thread reads and writes.
pub(crate) fn memory_bandwidth() -> f64 {
    let (from, mut into) = (vec![1u8; COPY_BYTES], vec![0u8; COPY_BYTES]);
    let copy = |_| {
        let start = Instant::now();
        // Nothing reads the copy, so the compiler could leave it out.
        into.copy_from_slice(black_box(&from));
        black_box(&into);
        start.elapsed().as_secs_f64()
    };
    2.0 * COPY_BYTES as f64 / (0..ROUNDS).map(copy).fold(f64::INFINITY, f64::min)
}

/// Larger than caches.
const COPY_BYTES: usize = 64 << 20;

/// Reads ranks and times from a file written by `unisono perf all_reduce --algo ring -J FILE`, or
/// with lines `ranks,bytes,microseconds`.
///
/// # Errors
/// [`unisono_nn::Error::File`] for any other format.
pub(crate) fn read(path: &Path) -> Result<(usize, Vec<Measurement>)> {
    let text = file_kind::read_text(path, "a file of measurements")?;
    parse(&text).map_err(|what| file_kind::recognized(path, "a file of measurements", what))
}

fn parse(text: &str) -> std::result::Result<(usize, Vec<Measurement>), String> {
    let found = if text.trim_start().starts_with('{') { from_json(text) } else { from_lines(text) }?;
    let (ranks, points) = &found;
    let is_time = |point: &Measurement| {
        point.seconds > 0.0 && point.bytes > 0.0 && point.seconds.is_finite() && point.bytes.is_finite()
    };
    match (2..=MAX_RANKS).contains(ranks) && points.iter().all(is_time) {
        true => Ok(found),
        false => Err(format!("times of {ranks} ranks: they need 2 ranks or more, and numbers above 0")),
    }
}

/// Reads bytes as measured times, and fits a link to them.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(bytes: &[u8]) {
    let Ok((ranks, points)) = parse(&String::from_utf8_lossy(bytes)) else { return };
    if let Ok(link) = Link::fit(ring(), ranks, &points) {
        assert!(link.error(ring(), ranks, &points) >= 0.0);
    }
}

fn from_json(text: &str) -> std::result::Result<(usize, Vec<Measurement>), String> {
    let document: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let rows = document["results"].as_array().map_or(&[][..], Vec::as_slice);
    let is_ring = |row: &Value| row["algo"] == "ring";
    if document["collective"] != "all_reduce" || rows.is_empty() || !rows.iter().all(is_ring) {
        let hint = "`unisono perf all_reduce --algo ring -J FILE` writes them";
        return Err(format!("not the times of all-reduces around the ring; {hint}"));
    }
    let point = |row: &Value| {
        // Prefers the median.
        let times = [&row["p50_us"], &row["out_of_place"]["time"], &row["in_place"]["time"]];
        let time = times.into_iter().find_map(Value::as_f64)?;
        Some(Measurement { bytes: row["size"].as_f64()?, seconds: time * 1e-6 })
    };
    let points = rows.iter().map(point).collect::<Option<Vec<_>>>();
    let ranks = document["ranks"].as_u64().map(|ranks| ranks as usize);
    ranks.zip(points).ok_or_else(|| "a result without its size or time".to_owned())
}

fn from_lines(text: &str) -> std::result::Result<(usize, Vec<Measurement>), String> {
    let line = |line: &str| {
        let mut numbers = line.split(',').map(|number| number.trim().parse::<f64>().ok());
        let [ranks, bytes, micros] = [(); 3].map(|()| numbers.next().flatten());
        Some((ranks? as usize, Measurement { bytes: bytes?, seconds: micros? * 1e-6 }))
    };
    let lines = text.lines().filter(|text| !text.trim().is_empty() && !text.starts_with('#'));
    let rows: Option<Vec<_>> = lines.map(line).collect();
    let rows = rows.ok_or("a line that is not `ranks,bytes,microseconds`")?;
    let ranks = rows.first().ok_or("no times")?.0;
    if rows.iter().any(|(other, _)| *other != ranks) {
        return Err("times of different numbers of ranks".to_owned());
    }
    Ok((ranks, rows.into_iter().map(|(_, point)| point).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_ranks_and_times_are_refused() {
        let json = |ranks: u64, time: f64| {
            let row = format!(r#"{{"size": 1024, "algo": "ring", "p50_us": {time:?}}}"#);
            parse(&format!(r#"{{"collective": "all_reduce", "ranks": {ranks}, "results": [{row}]}}"#))
        };
        assert_eq!(json(2, 5.0).unwrap().0, 2);
        assert_eq!(parse("2,1024,5").unwrap().0, 2);
        for (ranks, time) in [(0, 5.0), (1, 5.0), (u64::MAX, 5.0), (2, 0.0), (2, -1.0), (2, 1e308)] {
            let wrong = [json(ranks, time), parse(&format!("{ranks},1024,{time:?}"))];
            let is_right = |found: &std::result::Result<_, String>| found.is_ok();
            assert_eq!(wrong.iter().any(is_right), time == 1e308, "{ranks} ranks, {time}");
        }
        assert!(parse("2,1024,inf").is_err());
    }
}
