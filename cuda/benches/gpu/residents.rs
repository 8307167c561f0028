//! How many blocks can wait for each other at once.

use crate::table::Table;
use crate::{Bench, BenchResult};

const KERNELS: [&str; 4] =
    ["exchange", "ping_relaxed_release", "reduce_copy_float_sum", "reduce_copy_bfloat16_sum"];
const BLOCK_SIZES: [u32; 3] = [32, 256, 512];

pub(crate) fn run(bench: &Bench) -> BenchResult<Table> {
    let mut table = Table::new("Blocks resident at once", &["32 threads", "256 threads", "512 threads"]);
    for name in KERNELS {
        let kernel = bench.gpu.kernel(name)?;
        let mut residents = Vec::new();
        for threads in BLOCK_SIZES {
            residents.push(f64::from(kernel.max_resident_blocks(threads)?));
        }
        table.row(name, residents);
    }
    Ok(table)
}
