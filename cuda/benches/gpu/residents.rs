//! How many blocks can wait for each other at once.

use crate::rows::print;
use crate::{Bench, BenchResult};
use serde_json::json;

const KERNELS: [&str; 6] = [
    "exchange",
    "ping_relaxed_release",
    "reduce_copy_float_sum",
    "reduce_copy_bfloat16_sum",
    "schedule_float",
    "one_shot_float",
];
const BLOCK_SIZES: [u32; 3] = [32, 256, 512];

pub(crate) fn run(bench: &Bench) -> BenchResult {
    for name in KERNELS {
        // Names of kernels may change; those that are there count.
        let Ok(kernel) = bench.gpu.kernel(name) else { continue };
        for threads in BLOCK_SIZES {
            let blocks = kernel.max_resident_blocks(threads)?;
            print(&json!({"experiment": "residents", "case": name, "threads": threads, "blocks": blocks}));
        }
    }
    Ok(())
}
