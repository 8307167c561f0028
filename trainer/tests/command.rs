//! Tests of the command line.

#[path = "support/output.rs"]
mod output;
#[path = "command/printed_lines.rs"]
mod printed_lines;

use output::{output_text, run};
use std::path::Path;
use std::process::{Command, Output};

#[test]
fn printed_config_is_valid() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("run.toml");
    let printed = output_text(&["train", "--print-config", "model.width=64", "strategy.kind=zero2"]);
    std::fs::write(&path, &printed).expect("a file");
    assert_eq!(
        output_text(&["train", "--config", path.to_str().expect("a path"), "--print-config"]),
        printed
    );
    assert!(printed.contains("width = 64") && printed.contains("kind = \"zero2\""));
}

#[test]
fn default_micro_batch_follows_the_number_of_ranks() {
    let predicted = output_text(&["train", "--dry-run", "8"]);
    assert!(predicted.contains("8 = micro-batch 1 x accumulation 1 x 8 data ranks"), "{predicted}");
    assert!(output_text(&["train", "-n", "8", "--print-config"]).contains("micro_batch = 1"));
    assert!(output_text(&["train", "--print-config"]).contains("micro_batch = 2"));
}

#[test]
fn mistakes_print_one_line_and_exit_1() {
    let wrong = |arguments: &[&str], words: &str| {
        let output = run(arguments);
        let text = String::from_utf8(output.stderr).expect("text");
        assert_eq!((output.status.code(), text.lines().count()), (Some(1), 1), "{text}");
        assert!(text.starts_with("unisono-train: ") && text.contains(words), "{text}");
    };
    wrong(&["train", "modle.width=3"], "the nearest is `model.width`");
    wrong(&["train", "--config", "/nowhere.toml"], "/nowhere.toml");
    wrong(&["train", "-n", "3"], "nearest global batch: 6 or 12; set data.global_batch");
    wrong(&["train", "-n", "8", "data.micro_batch=2"], "a micro-batch of 1");
    wrong(&["train", "--dry-run", "7", "mesh.tensor=2"], "a world of 7 ranks cannot be split");
    wrong(&["train", "--dry-run", "1000000000000"], "there may be 16777216");
    wrong(&["train", "-n", "1000000000"], "there may be 1024");
    wrong(&["train", "-n", "0"], "-n 0: there is at least 1 rank");
    wrong(&["keys", "model.widht"], "the nearest is `model.width`");
    wrong(&["train", "--dry-run", "64", "data.global_batch=4294967291"], "nearest global batch");
    wrong(&["plan", "--tokens", "0"], "it is from 1");
    wrong(&["explain", "pipeline", "--schedule", "2f2b"], "there are naive, gpipe, 1f1b");
    wrong(&["explain", "pipeline", "--schedule", "interleaved", "-m", "6"], "no multiple of 4 ranks");
    wrong(&["explain", "pipeline", "--chunks", "2"], "a rank holds exactly 1");
    wrong(&["explain", "pipeline", "--costs", "1,0,1"], "--costs 1,0,1: three times above 0");
    wrong(&["explain", "pipeline", "--costs", "1,1,1,-1"], "times from 0");
    wrong(&["explain", "pipeline", "--svg", "/nowhere/a.svg"], "/nowhere/a.svg");
    wrong(&["plan", "--model", "1"], "usual proportions begin");
    wrong(&["plan", "--heads", "5"], "do not divide a width");
    wrong(&["plan", "--active", "3b"], "without --experts");
    wrong(&["plan", "--active", "8b", "--experts", "8"], "parameters in all");
    wrong(
        &["generate", "--checkpoint", "/nowhere", "--prompt", "a"],
        "/nowhere/manifest.json: there is no checkpoint here",
    );
    wrong(&["export", "--checkpoint", "/nowhere", "--to", "/nowhere/model"], "/nowhere/manifest.json");
    wrong(&["train", "model.from=/nowhere"], "/nowhere/config.json");
    let tokenizer = ["--tokenizer", "/nowhere.json", "--text", ".", "--out", "/nowhere.u16"];
    wrong(&[&["prepare"], &tokenizer[..]].concat(), "/nowhere.json");
}

#[test]
fn exported_model_is_trained_and_generates() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("a path").to_owned();
    let text: String = (0..200).map(|line| format!("line {line} is {}\n", line % 7)).collect();
    std::fs::write(path("text.txt"), text).expect("a file");
    let common =
        [format!("data.path={}", path("text.txt")), "log.every=1000".into(), "sample.tokens=0".into()];
    let common: Vec<&str> = common.iter().map(String::as_str).collect();
    let weights = |text: &str| {
        let line = text.lines().find(|line| line.starts_with("weights"));
        line.expect("a line with the weights").to_owned()
    };
    let checkpoints = format!("checkpoint.folder={}", path("checkpoints"));
    let settings = "model.shape=llama model.width=32 model.kv_heads=2 model.context=32 schedule.steps=3 \
               schedule.warmup=0 checkpoint.every=3";
    let settings: Vec<&str> = settings.split_whitespace().chain([checkpoints.as_str()]).collect();
    let trained = output_text(&[&["train", "-n", "2"], &common[..], &settings].concat());
    assert!(trained.contains(", perplexity "), "{trained}");
    let model_from = format!("model.from={}", path("exported"));
    for options in [&[][..], &["--max-file-mb", "0.01"]] {
        let paths = ["export", "--checkpoint", &path("checkpoints"), "--to", &path("exported")];
        assert_eq!(output_text(&[&paths[..], options].concat()), "");
        let again = [
            "train",
            "-n",
            "4",
            "schedule.steps=0",
            "checkpoint.last=false",
            "schedule.warmup=0",
            "strategy.kind=zero3",
            &model_from,
        ];
        assert_eq!(weights(&output_text(&[&again[..], &common].concat())), weights(&trained));
        assert_eq!(folder.path().join("exported/model.safetensors.index.json").exists(), !options.is_empty());
    }
    let generate = |flags: &[&str]| {
        let start = ["generate", "--checkpoint", &path("checkpoints"), "--prompt", "line"];
        output_text(&[&start[..], flags].concat())
    };
    let hot = ["--tokens", "30", "--temperature", "9", "--top-k", "200", "--top-p", "0.9999", "--seed"];
    let [first, same, other] = ["1", "1", "2"].map(|seed| generate(&[&hot[..], &[seed]].concat()));
    assert!(first == same && first != other && first.starts_with("line"), "{first:?}, {other:?}");
    assert_eq!(generate(&["--tokens", "3", "--top-k", "1", "--temperature", "5"]), {
        generate(&["--tokens", "3", "--temperature", "0"])
    });
    assert_eq!(generate(&["--tokens", "0"]), "line\n");
}

#[test]
fn explain_pipeline_prints_rows_and_figures() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("pipeline.svg");
    let svg = path.to_str().expect("a path");
    let text =
        output_text(&["explain", "pipeline", "--schedule", "zb-v", "-p", "4", "-m", "8", "--svg", svg]);
    let line = |name: &str| {
        let found = text.lines().find_map(|line| line.strip_prefix(name));
        found.unwrap_or_else(|| panic!("{name} in {text}")).trim().to_owned()
    };
    assert!(text.starts_with("zb-v: 4 ranks, 8 micro-batches, 2 stages per rank\n"), "{text}");
    assert!(line("source:").contains("ICLR 2024"));
    assert!(line("rank 0 ").starts_with("F0.0 F1.0 F2.0 F3.0 F4.0 F5.0 F6.0 F0.1 I0.1 W0.1"), "{text}");
    assert_eq!(
        (line("stages  "), line("time")),
        ("0+7 1+6 2+5 3+4".to_owned(), "25.5, of it 24 at work".to_owned())
    );
    assert_eq!(line("bubble"), "5.88 %, by formula 5.88 %");
    assert_eq!(
        (line("activations held"), line("published bound")),
        ("8 8 8 8".to_owned(), "8 8 8 8".to_owned())
    );
    assert_eq!(
        (line("activations sent"), line("gradients sent")),
        ("8 16 16 8".to_owned(), "8 16 16 8".to_owned())
    );
    assert!(std::fs::read_to_string(path).expect("a picture").starts_with("<svg "));

    let slow_links = output_text(&["explain", "pipeline", "--costs", "1,1,1,0.5"]);
    assert!(slow_links.contains("bubble             41.46 %, no formula for these numbers"), "{slow_links}");
    // Without the word, the command explains a plan.
    assert!(output_text(&["explain", "--model", "7b"]).contains("The mesh"));
}

#[test]
fn plan_takes_model_or_config() {
    let output = run(&["plan", "--model", "7b", "-c", "/nowhere.toml"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot be used with"));
}

#[test]
fn closed_stdout_is_not_an_error() {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut command = Command::new(env!("CARGO_BIN_EXE_unisono-train"));
    let data = concat!("data.path=", env!("CARGO_MANIFEST_DIR"), "/src");
    let small = ["train", data, "schedule.steps=2", "schedule.warmup=0", "log.every=1", "model.width=16"];
    command.args(small).args(["sample.tokens=2", "checkpoint.last=false"]).env_remove("RANK");
    let status = command.stdout(writer.try_clone().expect("a pipe")).stderr(writer).status();
    assert_eq!(status.expect("the command").code(), Some(0));
}

#[test]
fn unused_keys_are_named() {
    let arguments = ["train", "--dry-run", "2"];
    let keys = ["data.vocabulary=9", "data.validation_path=a", "data.tokenizer=b"];
    let text = output_text(&[&arguments[..], &keys[..]].concat());
    for key in ["data.vocabulary", "data.validation_path", "data.tokenizer"] {
        assert!(text.contains(&format!("{key} has no effect with a data.kind")), "{key}: {text}");
    }
    assert!(!output_text(&arguments).contains("no effect"));
}

#[test]
fn dry_run_of_1000_ranks_reads_no_data() {
    let arguments =
        ["data.path=/nowhere", "data.global_batch=4096", "strategy.kind=zero3", "data.micro_batch=4"];
    let text = output_text(&[&["train", "--dry-run", "1024"], &arguments[..]].concat());
    for words in [
        "parameters",
        "1024 ranks = tensor 1 x data 1024",
        "4096 = micro-batch 4 x accumulation 1",
        "zero3",
        "beyond 512",
    ] {
        assert!(text.contains(words), "`{words}` is not in\n{text}");
    }
}

#[test]
fn dry_run_draws_hosts() {
    let arguments = [
        "train",
        "--dry-run",
        "64",
        "--per-host",
        "8",
        "mesh.tensor=4",
        "mesh.pipeline=2",
        "data.micro_batch=1",
    ];
    let text = output_text(&arguments);
    for line in [
        "64 ranks = tensor 4 x data 8 x pipeline 2, on 8 hosts",
        "data 7  [28 29 30 31] h3  [60 61 62 63] h7",
        "tensor: 16 groups of 4, each within a host",
    ] {
        assert!(text.lines().any(|found| found.trim() == line), "`{line}` is not in\n{text}");
    }
}

#[test]
fn plan_reports_fit_and_cost() {
    let text =
        output_text(&["plan", "--model", "70b", "--hardware", "h100-80", "-n", "64", "--tokens", "4194304"]);
    for words in [
        "140 GB in 16 bits, 1120 GB to train",
        "1024 samples",
        "tensor 4 x pipeline 4 x data 4",
        "zero1 <",
        "Remedies, from the cheapest",
        "zero3 data 64, recomputed",
        "Meshes, from the fastest",
        "zero1 tensor 4 x pipeline 4 x data 4 <",
        "Meshes that do not fit",
    ] {
        assert!(text.contains(words), "`{words}` is not in\n{text}");
    }
    let text = output_text(&["explain", "--model", "7b"]);
    for words in ["21193254160", "zb-v", "within a host", "PAT", "lr_scale", "S^2/N", "f32 products "] {
        assert!(text.contains(words), "`{words}` is not in\n{text}");
    }
}

#[test]
fn plan_takes_config_and_measured_links() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("times.csv");
    let times = [1024.0, 65536.0, 1048576.0]
        .map(|bytes: f64| format!("8,{bytes},{}\n", 14.0 * 5.0 + bytes * 1.75 / 1e3));
    std::fs::write(&path, times.concat()).expect("a file");
    let fit =
        ["plan", "--json", "--fit", path.to_str().expect("a path"), "-n", "8", "strategy.param_dtype=bf16"];
    let answer: serde_json::Value = serde_json::from_str(&output_text(&fit)).expect("JSON");
    let assert_near = |found: &serde_json::Value, expected: f64| {
        let found = found.as_f64().expect("a number");
        assert!((found / expected - 1.0).abs() < 1e-6, "{found}, not {expected}");
    };
    assert_near(&answer["hardware"]["intra_host"]["alpha"], 5e-6);
    assert_near(&answer["hardware"]["intra_host"]["beta"], 1e9);
    assert_eq!((&answer["decision"]["rule"], &answer["shape"]["width"]), (&"Ddp".into(), &128.into()));
    assert_eq!(answer["shape"]["bytes"]["state"], 12.0);
    let text = output_text(&["plan", "-n", "16", "model.heads=16", "mesh.tensor=16"]);
    assert!(text.contains("tensor = 16 ranks do not fit on a host of 8"), "{text}");
    let wrong = run(&["plan", "--hardware", "abacus"]);
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("a100-80"));
}

#[test]
fn missing_or_invalid_variables_are_named() {
    let good = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29400")];
    let wrong = |name: &str, value: Option<&str>| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_unisono-train"));
        // It is told before it waits for anybody.
        command.arg("train").envs(good).env_remove("UNISONO_ID").env("UNISONO_JOIN_TIMEOUT_MS", "3600000");
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
        let output = command.output().expect("the command");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && text.contains(name), "{name}={value:?}: {text}");
    };
    for (name, _) in good {
        wrong(name, None);
    }
    for (name, value) in [("RANK", "one"), ("RANK", "2"), ("WORLD_SIZE", "two"), ("MASTER_PORT", "-1")] {
        wrong(name, Some(value));
    }
}

#[test]
fn meeting_point_without_a_rank_is_refused() {
    for (name, value) in [("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29400"), ("UNISONO_ID", "no id")] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_unisono-train"));
        command.arg("train").env(name, value);
        let output = command.output().expect("the command");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{name}: {text}");
        assert!(text.contains(&format!("{name} is set")) && text.contains("RANK"), "{text}");
    }
}

#[test]
fn unlikely_settings_are_warned_about() {
    let advice = |changes: &[&str]| {
        let fixed = ["data.path=/nowhere", "data.global_batch=64", "schedule.reference_batch=64"];
        let text = output_text(&[&["train", "--dry-run", "8"], &fixed[..], changes].concat());
        text.split("To be considered").nth(1).unwrap_or_default().to_owned()
    };
    assert_eq!(advice(&["data.micro_batch=8"]), "");
    for (changes, words) in [
        (&["data.last_batch=pad"][..], "shows some samples twice"),
        (&["data.shuffle=false"], "every epoch has the same order"),
        (&["strategy.bucket_mb=0.5"], "25 is usual"),
        (&["strategy.kind=zero3", "strategy.prefetch=0"], "every unit waits for its weights"),
        (&["strategy.kind=zero3", "data.micro_batch=4"], "come before accumulation"),
        (&["schedule.reference_batch=8"], "lr_scale"),
        (&["model.width=8192", "model.heads=8", "model.layers=40"], "this host has room for"),
        (&["model.width=8192", "model.heads=8", "model.layers=40"], "activations are not shared out"),
    ] {
        let advice = advice(changes);
        assert!(advice.contains(words), "{changes:?}: `{words}` is not in{advice}");
    }
}

/// Arguments of a run of a small model on the sources of this crate, in `folder`.
fn small(folder: &Path) -> Vec<String> {
    let data = concat!("data.path=", env!("CARGO_MANIFEST_DIR"), "/src/config");
    let model = ["model.layers=1", "model.width=16", "model.heads=2", "model.context=16"];
    let run = ["train", data, "schedule.warmup=0", "schedule.steps=3", "log.validate_every=2"];
    let checkpoint_folder = format!("checkpoint.folder={}", folder.join("checkpoints").display());
    run.into_iter().chain(model).map(str::to_owned).chain([checkpoint_folder]).collect()
}

fn run_small(folder: &Path, changes: &[&str]) -> Output {
    let arguments: Vec<String> =
        small(folder).into_iter().chain(changes.iter().map(|&change| change.to_owned())).collect();
    run(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
}

fn error_text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn run_says_what_it_does_before_its_first_step_and_how_to_go_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let first = run_small(folder.path(), &["sample.tokens=4", "mesh.tensor=2"]);
    let said = error_text(&first);
    let (head, steps) = said.split_once("step 1/3 loss").unwrap_or_else(|| panic!("{said}"));
    let [products, reductions] = [unisono_matmul::instruction_set(), unisono_reducers::instruction_set()];
    let processor = format!("processor   f32 products {products}, reductions {reductions}, other kernels ");
    for words in [
        processor.as_str(),
        "gpt, 1 layer, width 16, 2 heads, context 16: 7,6",
        " files, ",
        " tokens of 257 kinds in ",
        "2 ranks = tensor 2 x data 1 x pipeline 1, 1 thread each",
        "128 tokens a step, 8 = micro-batch 2 x accumulation 4 x 1 data rank; 3 steps are 0.",
        "strategy    bucketed",
        "MiB a rank by formula: weights 0.0",
        "% of wte.weight",
        "loss 5.5491 if all 257 answers are equally probable",
        "checkpoints`, after the last step",
    ] {
        assert!(head.contains(words), "`{words}` is not in\n{said}");
    }
    assert!(!said.contains("WARN"), "{said}");
    let memory = steps.lines().next().and_then(|line| line.split(" memory ").nth(1)).expect("memory");
    let [counted, formula] = [0, 1].map(|index| memory.split(['/', ' ']).nth(index).expect("two numbers"));
    assert_eq!(counted, formula, "the state is counted in the first step");
    assert!(steps.contains("step 2: validation loss 5.") && steps.contains(", perplexity "), "{said}");
    let out = String::from_utf8_lossy(&first.stdout).into_owned();
    assert!(out.contains("\nvalidation loss 5."), "{out}");

    let refused = run_small(folder.path(), &["schedule.steps=5", "checkpoint.resume=true", "optimizer.lr=1"]);
    let said = error_text(&refused);
    assert!(said.contains("optimizer.lr = 1.0 (saved: 0.002); set optimizer.lr=0.002, or accept"), "{said}");
    let resumed = run_small(folder.path(), &["schedule.steps=5", "checkpoint.resume=true", "log.every=2"]);
    let said = error_text(&resumed);
    for words in [
        "going on after step 3\n",
        "changed since it was saved: log.every = 2 (saved: 10), mesh.tensor = 1 (saved: 2), \
         sample.tokens = 240 (saved: 4), schedule.steps = 5 (saved: 3)\n",
        "the next learning rate is 8.22e-4, and 2.00e-4 by the saved schedule\n",
    ] {
        assert!(said.contains(words), "`{words}` is not in\n{said}");
    }
    let nothing =
        run_small(folder.path(), &["schedule.steps=5", "checkpoint.resume=true", "sample.tokens=0"]);
    let out = String::from_utf8_lossy(&nothing.stdout).into_owned();
    assert!(out.starts_with("no step taken: step 5 of 5\n") && !out.contains("bytes a rank"), "{out}");
}

#[test]
fn run_names_the_strategy_of_each_unit_and_keeps_its_interval() {
    let folder = tempfile::tempdir().expect("a folder");
    let units = "strategy.units={ \"h.*\" = \"zero3\", head = \"zero2\" }";
    let small = ["sample.tokens=0", "model.layers=2", units];
    let said = error_text(&run_small(folder.path(), &[&small[..], &["checkpoint.every=2"]].concat()));
    let line = "\nstrategy    bucketed for embedding, zero3 for h.0 to h.1, zero2 for head\n";
    assert!(said.contains(line), "{said}");
    let resume = ["schedule.steps=5", "checkpoint.resume=true"];
    let said = error_text(&run_small(folder.path(), &[&small[..], &resume].concat()));
    assert!(said.contains("checkpoint.every = 2, as before\n"), "{said}");
    assert!(said.contains("changed since it was saved: schedule.steps = 5 (saved: 3)\n"), "{said}");
}

#[test]
fn records_may_go_to_a_device() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = run_small(folder.path(), &["sample.tokens=0", "log.file=/dev/stdout"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.starts_with("{\"step\":1,\"loss\":5."), "{text}");
}

#[test]
fn run_beyond_the_memory_of_the_host_is_refused_with_remedies() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = run_small(folder.path(), &["model.width=1048576", "model.heads=1"]);
    let said = error_text(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let line = said.lines().last().expect("a line");
    for words in ["this host has ", "2 ranks of ", "weights ", "a smaller model", "check_memory=false"] {
        assert!(line.contains(words), "`{words}` is not in {line}");
    }
    // Activations of 2^21 samples at once.
    let large = ["data.global_batch=4194304", "data.micro_batch=2097152"];
    let output = run_small(folder.path(), &large);
    assert!(error_text(&output).contains("data.micro_batch=1 ("), "{}", error_text(&output));
    assert!(!folder.path().join("checkpoints").exists());
}

#[test]
fn generate_shows_text_of_a_run_without_a_sample() {
    let folder = tempfile::tempdir().expect("a folder");
    assert!(run_small(folder.path(), &["sample.tokens=0"]).status.success());
    let checkpoints = folder.path().join("checkpoints");
    let text =
        output_text(&["generate", "--checkpoint", checkpoints.to_str().expect("a path"), "--prompt", "abc"]);
    assert!(text.starts_with("abc") && text.len() > 100, "{text}");
    let tokenizer = folder.path().join("tokenizer.json");
    let model = r#"{"type": "WordLevel", "vocab": {"a": 0, "b": 300}, "unk_token": "a"}"#;
    std::fs::write(&tokenizer, format!(r#"{{"version": "1.0", "added_tokens": [], "model": {model}}}"#))
        .expect("a file");
    let tokenizer_key = format!("data.tokenizer={}", tokenizer.display());
    let checkpoints = checkpoints.to_str().expect("a path");
    let said = error_text(&run(&["generate", "--checkpoint", checkpoints, "--prompt", "b", &tokenizer_key]));
    assert!(said.contains("tokenizer.json: the prompt has token 300, and the model 257"), "{said}");
}

#[test]
fn keys_are_documented() {
    let all_keys = output_text(&["keys"]);
    for words in ["model.width = 128\n    Number of features per token.\n", "[checkpoint]\n", "zero3: "] {
        assert!(all_keys.contains(words), "`{words}` is not in\n{all_keys}");
    }
    let single_key = output_text(&["keys", "optimizer.kind"]);
    assert!(
        single_key.starts_with("optimizer.kind = \"adamw\"\n") && single_key.contains("muon: "),
        "{single_key}"
    );
    assert_eq!(output_text(&["train", "--help", "optimizer.kind"]), single_key);
    let printed = output_text(&["train", "--print-config"]);
    assert!(printed.contains("# Number of features per token.\nwidth = 128\n"), "{printed}");
    let help = output_text(&["train", "--help"]);
    assert!(help.contains("exposed ") && help.contains("model FLOPs utilization"), "{help}");
}
