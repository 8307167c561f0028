//! How many blocks can wait for each other at once.

use crate::table::Table;
use crate::{Answer, Bench};

const KERNELS: [&str; 4] =
    ["exchange", "ping_relaxed_release", "reduce_copy_float_sum", "reduce_copy_bfloat16_sum"];
const THREADS: [u32; 3] = [32, 256, 512];

pub(crate) fn run(bench: &Bench) -> Answer<Table> {
    let mut table = Table::new("Blocks resident at once", &["32 threads", "256 threads", "512 threads"]);
    for name in KERNELS {
        let kernel = bench.gpu.kernel(name)?;
        let mut residents = Vec::new();
        for threads in THREADS {
            residents.push(f64::from(kernel.residents(threads)?));
        }
        table.row(name, residents);
    }
    Ok(table)
}
