//! Sequences that one rank cannot train within a limit of memory train on several ranks.

#[path = "support/job.rs"]
mod job;

use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Tokens of the long sequence. One rank trains a quarter of them within the limit.
const LONG: usize = 4096;
const RANKS: usize = 4;

/// Bytes of addresses that a process may use. The long sequence alone has activations of 300 MiB.
const LIMIT: usize = 256 << 20;

/// Sizes of the communicators' memory, which counts too.
const SMALL_BUFFERS: [(&str, &str); 3] = [
    ("UNISONO_SHM_WINDOW_BYTES", "65536"),
    ("UNISONO_SYMMETRIC_HEAP_BYTES", "1048576"),
    ("UNISONO_FIFO_SLOT_BYTES", "16384"),
];

/// Runs `ranks` processes with limited memory, to their end.
fn train(folder: &Path, ranks: usize, overrides: &str) -> Vec<Output> {
    let (port, words) = (job::free_port(), job::small(folder));
    let fixed = "model.layers=36 model.width=32 data.global_batch=1 data.micro_batch=1 schedule.steps=2 \
                 schedule.warmup=0 checkpoint.every=0 checkpoint.last=false data.validation=0 log.validate_every=0 \
                 log.check_replicas_every=0";
    let rank = |rank: usize| {
        let mut command = Command::new("prlimit");
        command.arg(format!("--as={LIMIT}")).args([env!("CARGO_BIN_EXE_unisono-train"), "train"]);
        command.args(&words).args(fixed.split_whitespace()).args(overrides.split_whitespace());
        command.env("RANK", rank.to_string()).env("WORLD_SIZE", ranks.to_string());
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
        command.env("UNISONO_SECRET", "ab".repeat(32)).envs(SMALL_BUFFERS);
        command.env("MALLOC_ARENA_MAX", "1");
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a process")
    };
    job::Job((0..ranks).map(rank).collect()).finish()
}

fn error_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns the loss of the last step in rank 0's summary.
fn last_loss(outputs: &[Output]) -> f64 {
    let text = String::from_utf8_lossy(&outputs[0].stdout);
    let loss = text.lines().find_map(|line| line.split_once(" at first, ")?.1.strip_suffix(" at last"));
    loss.unwrap_or_else(|| panic!("no loss in {text}{}", error_of(&outputs[0]))).parse().expect("a number")
}

#[test]
fn four_ranks_train_sequences_four_times_as_long_as_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let context = |length| format!("model.context={length}");
    let quarter = train(folder.path(), 1, &context(LONG / RANKS));
    assert!(last_loss(&quarter) > 0.0, "one rank trains a quarter");
    let refused = error_of(&train(folder.path(), 1, &context(LONG))[0]);
    assert!(refused.contains("this process may use") && refused.contains("ulimit -v"), "{refused}");
    let forced = train(folder.path(), 1, &format!("{} check_memory=false", context(LONG)));
    assert!(!forced[0].status.success(), "the limit is enforced: {}", error_of(&forced[0]));
    for transfer in ["ring context.placement=zig-zag", "ulysses"] {
        let shared = format!("mesh.sequence_data={RANKS} context.kv_transfer={transfer} {}", context(LONG));
        let outputs = train(folder.path(), RANKS, &shared);
        assert!(outputs.iter().all(|output| output.status.success()), "{}", error_of(&outputs[0]));
        assert!(last_loss(&outputs) > 0.0);
    }
}
