//! Time to open a GPU: the first time in a process, and again after it was closed.

use crate::rows::print;
use crate::{BenchResult, Options};
use serde_json::json;
use std::time::Instant;
use unisono_cuda::device::{Gpu, gpus};

pub(crate) fn run(options: &Options) -> BenchResult {
    let loaders = std::thread::available_parallelism().map_or(1, |cores| cores.get().min(8));
    let row = |case: &str, begun: Instant| {
        let ms = begun.elapsed().as_secs_f64() * 1e3;
        print(
            &json!({"experiment": "start", "label": options.label, "case": case, "loaders": loaders, "ms": ms}),
        );
    };
    let begun = Instant::now();
    gpus()?;
    row("driver", begun);
    for case in ["first opening", "second opening, after closing"] {
        let begun = Instant::now();
        let gpu = Gpu::open(0)?;
        row(case, begun);
        let images = format!("{:?}", gpu.images());
        print(&json!({"machine": "images of kernels", "label": options.label, "value": images}));
        let begun = Instant::now();
        drop(gpu);
        row("closing", begun);
    }
    Ok(())
}
