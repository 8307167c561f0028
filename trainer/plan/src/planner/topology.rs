//! Description of hosts and links in TOML.

use crate::cost::{Hardware, Link};
use serde::Deserialize;

/// Hosts with equally many ranks, and the links among the ranks.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topology {
    hosts: usize,
    ranks_per_host: usize,
    /// Number of NUMA domains per host.
    #[serde(default = "one")]
    domains_per_host: usize,
    /// Links within a NUMA domain; those within the host by default.
    domain: Option<LinkEntry>,
    /// Links within a host; those of the hardware by default.
    host: Option<LinkEntry>,
    /// Links between hosts; those of the hardware by default.
    across: Option<LinkEntry>,
}

/// Link in the units of the command line.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkEntry {
    /// Bandwidth of a rank in GB/s each way.
    bandwidth: f64,
    /// Latency of a message in microseconds.
    latency: f64,
}

fn one() -> usize {
    1
}

impl Topology {
    /// Parses text.
    ///
    /// # Errors
    /// Describes text that is no topology, and numbers that are not above 0.
    pub fn parse(text: &str) -> std::result::Result<Self, String> {
        let topology: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        topology.check().map_or(Ok(topology), Err)
    }

    fn check(&self) -> Option<String> {
        let Self { hosts, ranks_per_host, domains_per_host, .. } = *self;
        if !(1..=1 << 20).contains(&hosts) || !(1..=1 << 12).contains(&ranks_per_host) {
            return Some(format!("hosts = {hosts} of ranks_per_host = {ranks_per_host}: both are from 1"));
        }
        if domains_per_host == 0 || !ranks_per_host.is_multiple_of(domains_per_host) {
            let what = format!("domains_per_host = {domains_per_host}");
            return Some(format!("{what} does not divide ranks_per_host = {ranks_per_host}"));
        }
        let links = [self.domain, self.host, self.across].into_iter().flatten();
        let is_link = |link: &LinkEntry| {
            link.bandwidth.is_finite() && link.bandwidth > 0.0 && (0.0..1e9).contains(&link.latency)
        };
        let wrong = links.into_iter().find(|link| !is_link(link))?;
        Some(format!("bandwidth = {} and latency = {}: no link", wrong.bandwidth, wrong.latency))
    }

    /// Returns the number of ranks.
    pub fn ranks(&self) -> usize {
        self.hosts * self.ranks_per_host
    }

    /// Returns the number of ranks per host.
    pub fn ranks_per_host(&self) -> usize {
        self.ranks_per_host
    }

    /// Sets hosts, and the links that the file has.
    pub fn apply(&self, hardware: &mut Hardware) {
        hardware.per_host = self.ranks_per_host;
        hardware.per_domain = self.ranks_per_host / self.domains_per_host;
        let link = |entry: LinkEntry| Link { alpha: entry.latency * 1e-6, beta: entry.bandwidth * 1e9 };
        if let Some(host) = self.host.map(link) {
            hardware.set_intra_host(host);
        }
        hardware.intra_domain = hardware.intra_host;
        if let Some(domain) = self.domain.map(link) {
            hardware.set_within(domain);
        }
        hardware.inter_host = self.across.map_or(hardware.inter_host, link);
    }
}

/// Reads bytes as a topology, and sets hardware by it.
pub fn fuzz(bytes: &[u8]) {
    if let Ok(topology) = Topology::parse(&String::from_utf8_lossy(bytes)) {
        let mut hardware = Hardware::named("h100-80", 8).expect("a kind of hardware");
        topology.apply(&mut hardware);
        assert!(topology.ranks() >= topology.ranks_per_host() && hardware.per_domain > 0);
    }
}
