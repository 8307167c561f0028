//! Times of all-reduces, as `unisono perf` writes them.

use crate::cost::{Link, Measurement, ring};
use serde_json::Value;
use unisono_parallel::mesh::MAX_RANKS;

/// Parses ranks and times of text that `unisono perf all_reduce --algo ring -J FILE` has written,
/// or of lines `ranks,bytes,microseconds`.
///
/// # Errors
/// Describes the difference of any other text.
pub fn parse(text: &str) -> std::result::Result<(usize, Vec<Measurement>), String> {
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
pub fn fuzz(bytes: &[u8]) {
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
