//! Lines that a run prints, against the records of its steps.

use super::{error_text, run_small};
use std::path::Path;

/// Returns what a run prints, and its records.
fn printed(folder: &Path, changes: &[&str]) -> (String, Vec<serde_json::Value>) {
    let path = folder.join("run.jsonl");
    let log = format!("log.file={}", path.display());
    let text = error_text(&run_small(folder, &[changes, &[&log]].concat()));
    let records = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{error}: {text}"));
    (text, records.lines().map(|line| serde_json::from_str(line).expect("a record")).collect())
}

#[test]
fn work_of_stages_is_printed_at_the_end_of_a_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let stages = ["-n", "2", "mesh.pipeline=2", "model.layers=2", "data.micro_batch=1", "sample.tokens=0"];
    let (text, records) = printed(folder.path(), &stages);
    let line = text.lines().find_map(|line| line.strip_prefix("stages worked "));
    let shares = line.and_then(|line| line.split(" of the time").next()).unwrap_or_else(|| panic!("{text}"));
    let percent = |share: &str| share.trim_end_matches(" %").parse::<f64>().expect("a number");
    let shares: Vec<f64> = shares.split(", ").map(percent).collect();
    let sum = |name: &str| records.iter().map(|record| record[name].as_f64().expect("a number")).sum::<f64>();
    // Records are those of rank 0, which has the first stage.
    let waited: f64 =
        ["exposed_seconds", "tensor_parallel_seconds", "pipeline_seconds"].map(sum).iter().sum();
    let share = 100.0 * (1.0 - waited / sum("seconds"));
    assert!(shares.len() == 2 && (shares[0] - share).abs() <= 1.0, "{shares:?}, and {share} by the records");
}

#[test]
fn loads_of_experts_are_printed_as_recorded() {
    let folder = tempfile::tempdir().expect("a folder");
    let experts = ["experts.count=4", "experts.per_token=1", "experts.width=8", "log.every=1"];
    let (text, records) = printed(folder.path(), &[&experts[..], &["sample.tokens=0"]].concat());
    assert_eq!(records.len(), 3, "{text}");
    let mut last = String::new();
    for (step, record) in records.iter().enumerate() {
        let blocks = record["expert_loads"].as_object().expect("loads by block");
        let (path, loads) = blocks.iter().next().expect("the only block");
        let loads = loads.as_array().expect("a load of each expert").iter();
        let loads: Vec<f64> = loads.map(|load| load.as_f64().expect("a number")).collect();
        assert!(loads.len() == 4 && (loads.iter().sum::<f64>() - 4.0).abs() < 1e-9, "{loads:?}");
        let highest_load = loads.iter().copied().fold(0.0, f64::max);
        let start = format!("step {}/3 ", step + 1);
        let line = text.lines().find(|line| line.starts_with(&start) && line.contains(" loss "));
        let line = line.unwrap_or_else(|| panic!("no line of step {}: {text}", step + 1));
        assert!(line.contains(&format!(" load {highest_load:.2}x in {path} ")), "{line}, with {loads:?}");
        let shown: Vec<String> = loads.iter().map(|load| format!("{load:.2}")).collect();
        let idle = loads.iter().filter(|load| **load == 0.0).count();
        last = format!("{path}: 4 experts, most loaded {highest_load:.2} x mean, {idle} without tokens: ");
        last.push_str(&shown.join(" "));
    }
    assert!(text.lines().any(|line| line == last), "`{last}` is not in {text}");
}
