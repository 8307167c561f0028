//! The commands of the stages about processors.

use super::steps::{Step, skipped};
use super::{Setting, cpu_peers};

pub(super) fn cpu_collectives(setting: &Setting) -> Vec<Step> {
    let (sizes, ranks) = setting.either(("8,1K,16K,256K,1M,16M", &[16, 8, 4, 2][..]), ("8,64K", &[2, 4]));
    let names = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"];
    let step = |ranks: &usize, name: &str| {
        let arguments = format!("perf {name} -N {ranks} --sizes {sizes} --samples 25 --jsonl");
        setting.program("unisono", 10, &arguments)
    };
    ranks.iter().flat_map(|ranks| names.map(|name| step(ranks, name))).collect()
}

pub(super) fn loopback_tcp(setting: &Setting) -> Vec<Step> {
    let (sizes, ranks) = setting.either(("8,64K,1M,16M", &[4, 16][..]), ("8,64K", &[2]));
    let step = |ranks: &usize, name: &str| {
        let arguments =
            format!("perf {name} -N {ranks} --transport tcp --sizes {sizes} --samples 25 --jsonl");
        setting.program("unisono", 10, &arguments)
    };
    ranks.iter().flat_map(|ranks| ["all_reduce", "all_gather"].map(|name| step(ranks, name))).collect()
}

pub(super) fn trainer_step(setting: &Setting) -> Vec<Step> {
    if !setting.has("unisono-train") {
        return vec![skipped("trainer step", "target/gpu-suite has no unisono-train")];
    }
    let (ranks, steps) = setting.either((&[1, 4, 8][..], 40), (&[1, 2], 4));
    // The trainer appends its records, one JSON object a line, to a file.
    let step = |&ranks: &i32| {
        let arguments = format!(
            "train -n {ranks} data.path=docs schedule.steps={steps} schedule.warmup=0 log.file=/dev/stdout checkpoint.last=false"
        );
        setting.program("unisono-train", 12, &arguments).field("trainer", "small GPT").field("ranks", ranks)
    };
    ranks.iter().map(step).collect()
}

pub(super) fn cpu_peers(setting: &Setting) -> Vec<Step> {
    let archive = setting.root.join("target/cpu-suite").join(cpu_peers::ARCHIVE);
    if !archive.is_file() {
        return vec![skipped("CPU peers", "there is no target/cpu-suite; see `gpu-suite pack-cpu`")];
    }
    let (ranks, sizes) = setting.either(("2,4,8,16", "8,64K,1M,16M"), ("2", "8,64K"));
    vec![Step::new("bash", 75, "-c").arg(cpu_peers::script(&archive, ranks, sizes))]
}
