//! Files that `plan` reads and writes: configurations, topologies and pictures.

#[path = "support/output.rs"]
mod output;

use output::{output_text, run};

/// A written plan runs as it is, on as many ranks.
#[test]
fn written_plan_trains() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(path("text.txt"), "a line of text\n".repeat(500)).expect("a file");
    let (config_path, plan) = (path("own.toml"), path("plan.toml"));
    let text = format!(
        "[model]\nlayers = 4\nwidth = 64\nheads = 8\ncontext = 32\n\
         [data]\npath = {:?}\nglobal_batch = 16\n[schedule]\nsteps = 2\nwarmup = 1\n\
         [sample]\ntokens = 0\n[checkpoint]\nlast = false\n",
        path("text.txt")
    );
    std::fs::write(&config_path, text).expect("a file");
    // Little memory asks for sharding, and slow links for few data ranks.
    for (ranks, more) in [
        ("2", &["--memory", "0.004"][..]),
        ("4", &["--per-host", "2", "--across", "0.001"]),
        ("8", &["--memory", "0.0016", "--plot", &path("plan.svg")]),
    ] {
        output_text(&[&["plan", "-c", &config_path, "-n", ranks, "--write", &plan][..], more].concat());
        let trained = output_text(&["train", "-c", &plan, "-n", ranks]);
        assert!(trained.contains("2 steps, loss"), "{trained}");
        let config = std::fs::read_to_string(&plan).expect("a file");
        assert!(config.contains("global_batch = 16") && config.contains("width = 64"), "{config}");
    }
    let picture = std::fs::read_to_string(path("plan.svg")).expect("a picture");
    assert!(picture.starts_with("<svg") && picture.contains("optimizer") && picture.contains("data"));
    wrong_with(&["plan", "--model", "7b", "--write", &plan], "--write is for a configuration");
}

fn wrong_with(arguments: &[&str], words: &str) {
    let output = run(arguments);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains(words), "{text}");
}

#[test]
fn plan_reads_a_topology() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("hosts.toml").display().to_string();
    let text = "hosts = 4\nranks_per_host = 8\ndomains_per_host = 2\n\
        host = { bandwidth = 64.0, latency = 3.0 }\ndomain = { bandwidth = 128.0, latency = 2.0 }\n\
        across = { bandwidth = 12.5, latency = 20.0 }\n";
    std::fs::write(&path, text).expect("a file");
    let answer = output_text(&["plan", "--json", "--model", "llama2-13b", "--topology", &path]);
    let answer: serde_json::Value = serde_json::from_str(&answer).expect("JSON");
    let hardware = &answer["hardware"];
    assert_eq!(
        (&hardware["ranks"], &hardware["per_host"], &hardware["per_domain"]),
        (&32.into(), &8.into(), &4.into())
    );
    let betas = ["intra_domain", "intra_host", "inter_host"].map(|link| hardware[link]["beta"].as_f64());
    assert_eq!(betas, [128e9, 64e9, 12.5e9].map(Some));
    let mesh = &answer["decision"]["parallel"];
    assert!(mesh["tensor"].as_u64().expect("a degree") <= 8, "{mesh}");
    let hosts = output_text(&["plan", "--model", "7b", "--hosts", "2", "--per-host", "4"]);
    assert!(hosts.contains("8 ranks, 4 a host"), "{hosts}");
    std::fs::write(&path, "hosts = 4\nranks_per_host = 8\ndomains_per_host = 3\n").expect("a file");
    wrong_with(&["plan", "--topology", &path], "domains_per_host = 3 does not divide");
}
