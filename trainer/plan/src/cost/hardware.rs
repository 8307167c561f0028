//! Hardware of an estimate.

use crate::cost::{ExchangeCosts, Link, Measurement, ring};
use serde::Serialize;
use unisono_nn::error::{Error, Result};

/// Equal ranks on equal hosts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Hardware {
    /// Number of ranks.
    pub ranks: usize,
    /// Number of ranks per host.
    pub per_host: usize,
    /// Memory of each rank in bytes.
    pub memory: f64,
    /// Memory bandwidth of a rank in bytes per second, reads and writes.
    pub memory_bandwidth: f64,
    /// Floating-point operations per second that a rank reaches with many rows.
    pub flops: f64,
    /// Number of rows of a micro-batch with which a rank reaches half of `flops`; 0 if the rate
    /// does not depend on them.
    pub half_rate_rows: f64,
    /// Share of a core that each rank has: below 1 if ranks share the cores of a host.
    pub cores_per_rank: f64,
    /// Processor time of exchanges, if ranks share the cores of a host. Links within a host then
    /// take no other time.
    pub exchange_costs: Option<ExchangeCosts>,
    /// Number of ranks per NUMA domain: a part of a host with faster links among its ranks.
    pub per_domain: usize,
    /// Link between ranks of one NUMA domain.
    pub intra_domain: Link,
    /// Link between ranks of one host.
    pub intra_host: Link,
    /// Link of each rank to other hosts.
    pub inter_host: Link,
}

/// Class of a link, by what its two ends share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum LinkClass {
    /// A NUMA domain.
    Domain,
    /// A host.
    Host,
    /// Nothing: the ends are on different hosts.
    Across,
}

/// GPUs by name. The numbers are memory in GB, its bandwidth in GB/s, TFLOP/s reached in 16 bits,
/// and GB/s each way within a host and between hosts. Half of the data sheet's TFLOP/s are reached.
const PRESETS: [(&str, [f64; 5]); 7] = [
    ("v100-32", [32.0, 900.0, 60.0, 150.0, 12.5]),
    ("a100-40", [40.0, 1555.0, 156.0, 300.0, 25.0]),
    ("a100-80", [80.0, 2039.0, 156.0, 300.0, 25.0]),
    ("h100-80", [80.0, 3350.0, 495.0, 450.0, 50.0]),
    ("h200-141", [141.0, 4800.0, 495.0, 450.0, 50.0]),
    ("b200-180", [180.0, 7700.0, 1125.0, 900.0, 50.0]),
    ("mi300x-192", [192.0, 5300.0, 653.0, 448.0, 50.0]),
];

/// Returns the numbers of a GPU by its name, or by the beginning of its name if no other begins so:
/// `h200`, `mi300`.
fn preset(name: &str) -> Result<[f64; 5]> {
    let wanted = name.to_ascii_lowercase();
    let found: Vec<_> = PRESETS.iter().filter(|(preset_name, _)| preset_name.starts_with(&wanted)).collect();
    match (PRESETS.iter().find(|(preset_name, _)| *preset_name == wanted), &found[..]) {
        (Some((_, numbers)), _) => Ok(*numbers),
        (None, [(_, numbers)]) if !wanted.is_empty() => Ok(*numbers),
        _ => {
            let names = PRESETS.map(|(name, _)| name).join(", ");
            Err(Error::invalid(format!("no hardware is called `{name}`: there are {names}")))
        }
    }
}

impl Hardware {
    /// Returns GPUs of the kind `name`, with eight ranks per host.
    ///
    /// # Errors
    /// [`Error::Invalid`] names the valid kinds.
    pub fn named(name: &str, ranks: usize) -> Result<Self> {
        if ranks == 0 {
            return Err(Error::invalid("a plan for 0 ranks"));
        }
        let numbers = preset(name)?;
        let [memory, memory_bandwidth, teraflops, in_host, across] = numbers;
        let intra_host = Link { alpha: 5e-6, beta: in_host * 1e9 };
        Ok(Self {
            ranks,
            per_host: ranks.min(8),
            memory: memory * 1e9,
            memory_bandwidth: memory_bandwidth * 1e9,
            flops: teraflops * 1e12,
            half_rate_rows: 0.0,
            cores_per_rank: 1.0,
            exchange_costs: None,
            per_domain: ranks.min(8),
            intra_domain: intra_host,
            intra_host,
            inter_host: Link { alpha: 10e-6, beta: across * 1e9 },
        })
    }

    /// Returns the floating-point operations per second of a rank with this number of rows: f n /
    /// (n + h), where the rate is half of f for h rows.
    pub fn rate(&self, rows: f64) -> f64 {
        self.flops * rows / (rows + self.half_rate_rows)
    }

    /// Sets the rate from two measurements of rows and operations per second.
    pub fn fit_rate(&mut self, [(more, fast), (fewer, slow)]: [(f64, f64); 2]) {
        // 1 / rate = 1 / f + (h / f) / n.
        let slope = (1.0 / slow - 1.0 / fast) / (1.0 / fewer - 1.0 / more);
        // Noise may make more rows slower, or fewer ones hopeless.
        let slope = slope.clamp(0.0, 0.9 * more / fast);
        self.flops = 1.0 / (1.0 / fast - slope / more);
        self.half_rate_rows = slope * self.flops;
    }

    /// Fits a link to all-reduces that `ranks` ranks have measured, and replaces the link between
    /// those ranks: within a host if they fit on one. Returns the maximum relative error of the
    /// fit.
    ///
    /// # Errors
    /// Fails as [`Link::fit`] does.
    pub fn fit(&mut self, ranks: usize, points: &[Measurement]) -> Result<f64> {
        let link = Link::fit(ring(), ranks, points)?;
        match self.link_class(ranks, 1) {
            LinkClass::Domain => self.set_within(link),
            LinkClass::Host => self.set_intra_host(link),
            LinkClass::Across => self.inter_host = link,
        }
        Ok(link.error(ring(), ranks, points))
    }

    /// Sets the number of ranks per host, each of which is one NUMA domain.
    pub fn set_per_host(&mut self, ranks: usize) {
        (self.per_host, self.per_domain) = (ranks, ranks);
    }

    /// Sets the link between ranks of one host. It replaces measured costs of exchanges.
    pub fn set_intra_host(&mut self, link: Link) {
        (self.intra_host, self.exchange_costs) = (link, None);
    }

    /// Sets the link between ranks of one NUMA domain, also for a host that is no more than one. It
    /// replaces measured costs of exchanges.
    pub(crate) fn set_within(&mut self, link: Link) {
        (self.intra_domain, self.exchange_costs) = (link, None);
        if self.per_domain >= self.per_host {
            self.intra_host = link;
        }
    }

    /// Returns the number of hosts.
    pub fn hosts(&self) -> usize {
        self.ranks.div_ceil(self.per_host)
    }

    /// Returns the class of the slowest link among `members` ranks, if neighbors are `apart` ranks
    /// from each other.
    pub fn link_class(&self, members: usize, apart: usize) -> LinkClass {
        match members * apart {
            _ if members == 1 => LinkClass::Domain,
            span if span <= self.per_domain => LinkClass::Domain,
            span if span <= self.per_host => LinkClass::Host,
            _ => LinkClass::Across,
        }
    }

    /// Returns the link of [`Hardware::link_class`].
    pub fn link(&self, members: usize, apart: usize) -> Link {
        match self.link_class(members, apart) {
            LinkClass::Domain => self.intra_domain,
            LinkClass::Host => self.intra_host,
            LinkClass::Across => self.inter_host,
        }
    }

    /// Returns the bytes of a rank's memory available to a plan. The rest is for buffers,
    /// fragmentation and the system.
    pub fn usable_memory(&self) -> f64 {
        0.9 * self.memory
    }
}
