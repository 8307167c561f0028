//! Cost of events on the host.

use crate::rows::{median, print};
use crate::{Bench, BenchResult};
use serde_json::json;
use std::time::Instant;
use unisono_cuda::device::GpuError;

pub(crate) fn run(bench: &Bench) -> BenchResult {
    let stream = bench.gpu.stream()?;
    let (kept, count) = (stream.record()?, bench.sized(10, 500));
    let row = |case: &str, work: &dyn Fn() -> Result<(), GpuError>| -> BenchResult {
        let mut times = Vec::new();
        for _ in 0..SAMPLES {
            stream.synchronize()?;
            let begun = Instant::now();
            (0..count).try_for_each(|_| work())?;
            times.push(begun.elapsed().as_secs_f64() * 1e6 / f64::from(count));
        }
        print(&json!({"experiment": "events", "case": case, "us": median(times)}));
        Ok(())
    };
    row("record", &|| kept.record(&stream))?;
    row("query", &|| kept.is_done().map(drop))?;
    row("create, record and destroy", &|| stream.record().map(drop))
}

const SAMPLES: usize = 5;
