//! Tests of the command with files of others, and with keys that do not fit together.

#[path = "support/output.rs"]
mod output;

use output::{output_text, run};
use std::path::Path;

/// Returns what a command that fails says.
fn refusal(arguments: &[&str]) -> String {
    let output = run(arguments);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {text}");
    text
}

fn shown(path: &Path) -> &str {
    path.to_str().expect("a path")
}

const POINTER: &str = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 548105171\n";

#[test]
fn files_in_place_of_others_are_named_with_a_remedy() {
    let folder = tempfile::tempdir().expect("a folder");
    let write_file = |name: &str, contents: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, contents).expect("a file");
        path
    };
    let prepare = |tokenizer: &Path| {
        let out = folder.path().join("out.u16");
        let options = ["--tokenizer", shown(tokenizer), "--text", shown(folder.path()), "--out", shown(&out)];
        refusal(&[&["prepare"], &options[..]].concat())
    };
    for (contents, words) in [
        (POINTER.as_bytes(), "git lfs pull"),
        (b"<!DOCTYPE html><title>Not found</title>", "a web page (HTML)"),
        (b"", "empty"),
        (b"{}", "no tokenizer.json"),
    ] {
        let text = prepare(&write_file("tokenizer.json", contents));
        assert!(text.contains("tokenizer.json: ") && text.contains(words), "{text}");
    }
    let config = write_file("run.toml", b"seed = 1 # f\xfcr");
    let text = refusal(&["train", "--config", shown(&config)]);
    assert!(text.contains("byte 12 is 0xfc, which is not UTF-8"), "{text}");
    let config = write_file("pointer.toml", POINTER.as_bytes());
    assert!(refusal(&["train", "--config", shown(&config)]).contains("git lfs pull"));
    let text = refusal(&["train", "--config", shown(folder.path())]);
    assert!(text.contains("a folder, where a configuration in TOML belongs"), "{text}");
    let tokens = write_file("tokens.bin", POINTER.as_bytes());
    let path = format!("data.path={}", shown(&tokens));
    let text = refusal(&["train", "data.kind=tokens", "data.vocabulary=50257", &path]);
    assert!(text.contains("tokens.bin: this is no token file, but a pointer of git-LFS"), "{text}");
    let prefix = format!("data.path={}", shown(&folder.path().join("tokens")));
    let text = refusal(&["train", "data.kind=tokens", "data.vocabulary=50257", &prefix]);
    assert!(text.contains("; there is `") && text.contains("tokens.bin`"), "{text}");
}

#[test]
fn dry_run_refuses_what_train_would() {
    for (changes, words) in [
        (&["device=software", "model.positions=rotary"][..], "with a device that is not the CPU"),
        (&["device=cuda", "data.micro_sequences=2"], "with a device that is not the CPU"),
    ] {
        let text = refusal(&[&["train", "--dry-run", "2"], changes].concat());
        assert!(text.contains(words), "{changes:?}: {text}");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let tokens = folder.path().join("tokens.u16");
    std::fs::write(&tokens, [1, 0].repeat(300)).expect("a file");
    let data = format!("data.path={}", shown(&tokens));
    let here = |changes: &[&str]| {
        let checkpoints = format!("checkpoint.folder={}", shown(&folder.path().join("checkpoints")));
        let fixed = ["train", "--dry-run", "2", "data.vocabulary=300", "data.kind=tokens", &checkpoints];
        let text = output_text(&[&fixed[..], changes].concat());
        let told = text.split_once("Refused by `train` on this machine\n");
        told.map_or(String::new(), |(_, tail)| tail.split("\n\n").next().expect("a part").to_owned())
    };
    assert!(here(&["data.path=/nowhere"]).contains("/nowhere: data.path"));
    assert!(here(&[&data]).contains("2 samples do not make one batch of 8"));
    assert_eq!(here(&[&data, "model.context=16"]), "");
    let earlier = folder.path().join("checkpoints/step-00000003");
    std::fs::create_dir_all(&earlier).expect("a folder");
    std::fs::write(earlier.join("manifest.json"), "{}").expect("a file");
    let text = here(&[&data, "model.context=16"]);
    assert!(text.contains("has checkpoints of an earlier run"), "{text}");
    assert_eq!(here(&[&data, "model.context=16", "checkpoint.resume=true"]), "");
}

#[test]
fn number_of_steps_needs_no_other_key() {
    let text = output_text(&["train", "--print-config", "schedule.steps=4"]);
    assert!(text.contains("steps = 4") && text.contains("warmup = 0"), "{text}");
    output_text(&["train", "--dry-run", "1", "schedule.steps=4", "data.global_batch=1"]);
}

#[test]
fn plan_tells_pace_and_days() {
    let plan = |more: &[&str]| {
        let fixed = ["plan", "--json", "--model", "llama3-8b", "--hardware", "h200", "-n", "64"];
        let text = output_text(&[&fixed[..], more].concat());
        serde_json::from_str::<serde_json::Value>(&text).expect("JSON")
    };
    let found = plan(&[]);
    let throughput =
        |answer: &serde_json::Value, key: &str| answer["throughput"][key].as_f64().expect("a number");
    let psi = found["shape"]["parameters"].as_f64().expect("a number");
    assert_eq!(psi, 8_030_261_248.0);
    let pace = throughput(&found, "tokens_per_second");
    assert!(
        (throughput(&found, "step_tokens") / throughput(&found, "step_seconds") / pace - 1.0).abs() < 1e-9
    );
    let flops = 6.0 * psi + 6.0 * 32.0 * 4096.0 * 8192.0;
    assert!((pace * flops / (64.0 * 495e12) / throughput(&found, "mfu") - 1.0).abs() < 1e-9);
    assert!((20.0 * psi / pace / 86_400.0 / throughput(&found, "days") - 1.0).abs() < 1e-9);
    let days = throughput(&plan(&["--train-tokens", "2t"]), "days");
    assert!((2e12 / pace / 86_400.0 / days - 1.0).abs() < 1e-9);
    let text = output_text(&["plan", "--model", "llama3-8b", "--hardware", "mi300"]);
    assert!(text.contains("tokens/s, MFU ") && text.contains(" days for "), "{text}");
    assert!(refusal(&["plan", "--hardware", "a100"]).contains("a100-40, a100-80"));
    let text = refusal(&["plan", "--model", "llama4-8b"]);
    assert!(
        text.contains("--model llama4-8b: no number of parameters") && text.contains("llama3-8b"),
        "{text}"
    );
}

#[test]
fn meshes_of_a_plan_are_in_the_order_of_their_steps() {
    for model in ["7b", "70b", "llama3-70b"] {
        let text = output_text(&["plan", "--model", model, "--hardware", "h100-80", "-n", "64"]);
        let table = text.split_once("Meshes, from the fastest\n").expect("the table").1;
        let losses: Vec<f64> = table
            .lines()
            .skip(1)
            .take_while(|line| !line.trim_start().starts_with("of "))
            .map(|line| {
                let (start, _) = line.split_once(" %").expect("a loss");
                start.rsplit(' ').next().expect("a number").parse().expect("a number")
            })
            .collect();
        assert!(losses.len() > 1 && losses.is_sorted(), "{model}: {losses:?} in\n{text}");
        assert_eq!(table.lines().filter(|line| line.contains(" <  ")).count(), 2, "{model}: {text}");
    }
    let text = output_text(&["explain", "--model", "7b"]);
    assert!(text.contains("all gradients across hosts, by ranks"), "{text}");
    assert!(text.contains("on the 8 ranks of one host, a ring takes"), "{text}");
}

#[test]
fn prepared_files_too_short_for_train_are_noted() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let words = r#"{"version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [{"id": 2, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true}],
        "normalizer": null, "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": {"one": 0, "?": 1}, "unk_token": "?"}}"#;
    std::fs::write(path("tokenizer.json"), words).expect("a file");
    std::fs::write(path("a.txt"), "one ".repeat(300)).expect("a file");
    let (tokenizer, out) = (path("tokenizer.json"), path("t.u8"));
    let options = ["--tokenizer", shown(&tokenizer), "--text", shown(folder.path()), "--out", shown(&out)];
    let output = run(&[&["prepare"], &options[..]].concat());
    let [told, noted] =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    assert!(output.status.success() && told.starts_with("1 document: 271 training tokens"), "{told}{noted}");
    assert!(noted.contains("t-validation.u8 has 31 tokens") && noted.contains("to at most 30"), "{noted}");
}
