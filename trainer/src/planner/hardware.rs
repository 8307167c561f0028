//! What a model is trained on, in a few numbers.

use crate::error::{Error, Result};
use crate::planner::link::{Link, ring};
use crate::planner::measurements;
use crate::train::{host_memory, peak_flops};
use serde::Serialize;
use std::path::Path;

/// Equal ranks on equal hosts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Hardware {
    /// Ranks in all.
    pub ranks: usize,
    /// Ranks of one host.
    pub per_host: usize,
    /// Bytes of memory of each rank.
    pub memory: f64,
    /// Bytes that a rank reads or writes in its memory in a second.
    pub memory_bandwidth: f64,
    /// Floating-point operations that a rank does in a second while it computes, as reached in large matrix products.
    pub flops: f64,
    /// Between ranks of one host.
    pub intra_host: Link,
    /// Between hosts, for each rank.
    pub inter_host: Link,
}

/// Name, memory in GB and its bandwidth in GB/s, TFLOP/s reached in 16 bits (half of the data sheet), GB/s each way within a host and
/// between hosts.
const PRESETS: [(&str, [f64; 5]); 4] = [
    ("v100-32", [32.0, 900.0, 60.0, 150.0, 12.5]),
    ("a100-40", [40.0, 1555.0, 156.0, 300.0, 25.0]),
    ("a100-80", [80.0, 2039.0, 156.0, 300.0, 25.0]),
    ("h100-80", [80.0, 3350.0, 495.0, 450.0, 50.0]),
];

impl Hardware {
    /// So many ranks, eight to a host, of the kind called `name`: a GPU, or `here` for this machine, measured.
    ///
    /// # Errors
    /// [`Error::Illegal`] names the kinds there are; of collectives that are measured.
    pub fn named(name: &str, ranks: usize) -> Result<Self> {
        if ranks == 0 {
            return Err(Error::invalid("a plan for 0 ranks"));
        }
        if name == "here" {
            return Self::measure_local(ranks);
        }
        let Some((_, numbers)) = PRESETS.iter().find(|(preset, _)| *preset == name) else {
            let names = PRESETS.map(|(name, _)| name).join(", ");
            return Err(Error::invalid(format!("no hardware is called `{name}`: there are {names}, here")));
        };
        let [memory, memory_bandwidth, teraflops, within, across] = *numbers;
        Ok(Self {
            ranks,
            per_host: ranks.min(8),
            memory: memory * 1e9,
            memory_bandwidth: memory_bandwidth * 1e9,
            flops: teraflops * 1e12,
            intra_host: Link { alpha: 5e-6, beta: within * 1e9 },
            inter_host: Link { alpha: 10e-6, beta: across * 1e9 },
        })
    }

    /// This machine as one host of so many ranks, each with its share of the memory. Links are measured between threads.
    fn measure_local(ranks: usize) -> Result<Self> {
        let measured = ranks.clamp(2, 4);
        let groups = unisono::Communicator::local(measured)?;
        let link = Link::fit(ring(), measured, &measurements::sweep(groups, &measurements::SIZES)?)?;
        let Some(memory) = host_memory() else {
            return Err(Error::Unsupported("the memory of this machine is unknown: give it".to_owned()));
        };
        Ok(Self {
            ranks,
            per_host: ranks,
            memory: memory as f64 / ranks as f64,
            memory_bandwidth: measurements::memory_bandwidth(),
            flops: peak_flops(1),
            intra_host: link,
            inter_host: link,
        })
    }

    /// Replaces the link between those ranks that a file of measured all-reduces is of: within a host if they fit on one. Returns by
    /// what share of a measured time the link is wrong at most.
    ///
    /// # Errors
    /// Of the file, and as [`Link::fit`].
    pub fn fit(&mut self, path: &Path) -> Result<f64> {
        let (ranks, points) = measurements::read(path)?;
        let link = Link::fit(ring(), ranks, &points).map_err(|error| Error::file(path, error))?;
        let replaced = if ranks <= self.per_host { &mut self.intra_host } else { &mut self.inter_host };
        *replaced = link;
        Ok(link.error(ring(), ranks, &points))
    }

    /// The link that `data` ranks use whose neighbors are `apart` ranks from each other.
    pub fn link(&self, data: usize, apart: usize) -> Link {
        if data * apart > self.per_host { self.inter_host } else { self.intra_host }
    }

    /// Bytes of each rank's memory that may be planned with: the rest is for buffers, fragments and the system.
    pub fn usable_memory(&self) -> f64 {
        0.9 * self.memory
    }
}
