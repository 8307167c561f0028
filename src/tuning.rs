//! The tuning table, whose rules map an operation to an algorithm.
//!
//! The library has a built-in table. A tuning file holds rules that were measured on a machine, and
//! they take precedence over the built-in rules.
//!
//! A file has one rule on a line: `collective topology ranks_max bytes_max algorithm`, for example
//! `all_reduce shm 2 8192 oneshot`. The first rule that applies is used. `any` means no limit.
//! Bytes are those of one share. `#` begins a comment.
//!
//! ```text
//! shm           ranks that share memory, also when the host is oversubscribed
//! shm-oversub   ranks that share memory and outnumber the cores of the host
//! gpu           ranks whose GPUs access each other's memory
//! tcp-oversub   ranks that send messages and outnumber the cores of the host
//! tcp           all ranks, except GPU communicators
//! ```
//!
//! GPU communicators use only `gpu` rules of a file, because host measurements do not apply to
//! them. A sum that is rounded to floats of 8 or 16 bits skips rules whose algorithm rounds it more
//! than once, if more than two ranks share memory.

use crate::hash::fnv1a;
use crate::schedule::{Algorithm, Collective, PeerAccess, find};
use std::fmt;
use unisono_transports::text::printable;

/// The kind of connection between the ranks of a communicator, by which an algorithm is selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// Ranks exchange messages.
    Network,
    /// Ranks exchange messages and outnumber the cores of their host. The time then depends on the
    /// total work and not on the number of rounds.
    NetworkOversubscribed,
    /// All ranks share memory.
    SharedMemory,
    /// All ranks share memory and outnumber the cores of their host.
    SharedMemoryOversubscribed,
    /// All ranks access each other's GPU memory.
    Gpu,
}

impl Topology {
    /// All topologies.
    pub const ALL: [Self; 5] = [
        Topology::SharedMemory,
        Topology::SharedMemoryOversubscribed,
        Topology::Gpu,
        Topology::NetworkOversubscribed,
        Topology::Network,
    ];

    /// Returns the memory of a peer that a rank can access.
    pub fn peer_access(self) -> PeerAccess {
        match self {
            Topology::Network | Topology::NetworkOversubscribed => PeerAccess::TwoSided,
            Topology::SharedMemory | Topology::SharedMemoryOversubscribed | Topology::Gpu => {
                PeerAccess::Window
            }
        }
    }

    /// Returns true if a rule for `self` applies to communicators of `topology`.
    fn applies_to(self, topology: Topology) -> bool {
        let general = self == Topology::SharedMemory && topology.peer_access() == PeerAccess::Window;
        self == Topology::Network || self == topology || general
    }

    fn name(self) -> &'static str {
        match self {
            Topology::Network => "tcp",
            Topology::NetworkOversubscribed => "tcp-oversub",
            Topology::SharedMemory => "shm",
            Topology::SharedMemoryOversubscribed => "shm-oversub",
            Topology::Gpu => "gpu",
        }
    }
}

/// One rule, which says to use `algorithm` for up to `ranks_max` ranks and `bytes_max` bytes in a
/// share.
#[derive(Clone, Copy, Debug)]
pub struct TuningRule {
    /// The topology to which the rule applies. A rule for [`Topology::Network`] applies to all
    /// topologies.
    pub topology: Topology,
    /// Largest number of ranks.
    pub ranks_max: usize,
    /// Longest share, in bytes.
    pub bytes_max: usize,
    /// The algorithm to use.
    pub algorithm: &'static Algorithm,
}

/// Rules in order of preference. The first rule that applies is used.
#[derive(Clone, Debug, Default)]
pub struct TuningTable(Vec<TuningRule>);

/// No limit. A file has `any` for this.
pub const UNLIMITED: usize = usize::MAX;

impl TuningTable {
    /// Creates a table of `rules`, which come before the built-in ones.
    pub fn new(rules: Vec<TuningRule>) -> Self {
        Self(rules)
    }

    /// Parses the text of a tuning file.
    ///
    /// # Errors
    /// The error names the first malformed line and the reason.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut rules = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or("").trim();
            if !line.is_empty() {
                rules.push(
                    parse_rule(line).map_err(|why| format!("line {}: {}", number + 1, printable(&why)))?,
                );
            }
        }
        Ok(Self(rules))
    }

    /// Returns a hash of the table. Ranks compare it during bootstrap, because all must use equal
    /// tables.
    pub(crate) fn digest(&self) -> u64 {
        fnv1a(self.to_string().bytes().map(u64::from))
    }

    /// Returns all rules for an operation. The rules of the built-in table come last.
    pub(crate) fn rules(
        &self,
        collective: Collective,
        topology: Topology,
        ranks: usize,
        bytes: usize,
    ) -> impl Iterator<Item = TuningRule> + '_ {
        let applies = move |rule: &TuningRule| {
            rule.algorithm.collective == collective
                && rule.topology.applies_to(topology)
                && ranks <= rule.ranks_max
                && bytes <= rule.bytes_max
        };
        // Host measurements do not apply to GPUs.
        let of_its_kind =
            move |rule: &&TuningRule| topology != Topology::Gpu || rule.topology == Topology::Gpu;
        let measured = self.0.iter().filter(of_its_kind);
        measured.copied().chain(built_in_rules(collective)).filter(applies)
    }
}

impl fmt::Display for TuningTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bound = |bound: usize| if bound == UNLIMITED { "any".to_owned() } else { bound.to_string() };
        for TuningRule { topology, ranks_max, bytes_max, algorithm } in &self.0 {
            let Algorithm { collective, name, .. } = algorithm;
            let topology = topology.name();
            writeln!(f, "{collective} {topology} {} {} {name}", bound(*ranks_max), bound(*bytes_max))?;
        }
        Ok(())
    }
}

fn parse_rule(line: &str) -> Result<TuningRule, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [collective, topology, ranks_max, bytes_max, name] = words[..] else {
        return Err(format!("{} words, expected 5", words.len()));
    };
    let bound = |word: &str| match word {
        "any" => Ok(UNLIMITED),
        _ => word.parse().map_err(|_| format!("`{word}` is neither a number nor `any`")),
    };
    let found = Collective::ALL.into_iter().find(|known| known.name() == collective);
    let collective = found.ok_or_else(|| format!("no collective `{collective}`"))?;
    let Some(topology) = Topology::ALL.into_iter().find(|known| known.name() == topology) else {
        let names = Topology::ALL.map(|topology| format!("`{}`", topology.name())).join(", ");
        return Err(format!("`{topology}` is none of {names}"));
    };
    let algorithm =
        find(collective, name).ok_or_else(|| format!("no algorithm `{name}` for {collective}"))?;
    if algorithm.peer_access > topology.peer_access() {
        return Err(format!("{collective} {name} does not run on {topology:?} alone"));
    }
    Ok(TuningRule { topology, ranks_max: bound(ranks_max)?, bytes_max: bound(bytes_max)?, algorithm })
}

/// The built-in rules: (collective, topology, largest group, longest share in bytes, algorithm).
///
/// A rule can follow a rule without limits. It applies to operations that the earlier algorithm
/// cannot run, for example because that algorithm does not keep rank order.
const BUILT_IN_RULES: &[(Collective, Topology, usize, usize, &str)] = {
    use Collective::*;
    use Topology::{Gpu, Network, NetworkOversubscribed, SharedMemory, SharedMemoryOversubscribed};
    &[
        (AllReduce, Gpu, UNLIMITED, 16 << 10, "oneshot"),
        (AllReduce, Gpu, UNLIMITED, UNLIMITED, "twoshot"),
        (AllReduce, SharedMemory, 2, 8 << 10, "oneshot"),
        (AllReduce, SharedMemory, 2, UNLIMITED, "inplace_ring"),
        (AllReduce, SharedMemory, UNLIMITED, 16 << 10, "oneshot"),
        (AllReduce, SharedMemoryOversubscribed, UNLIMITED, 384 << 10, "twoshot"),
        (AllReduce, SharedMemoryOversubscribed, UNLIMITED, UNLIMITED, "inplace_ring"),
        (AllReduce, SharedMemory, UNLIMITED, UNLIMITED, "twoshot"),
        (AllGather, SharedMemory, UNLIMITED, UNLIMITED, "window_direct"),
        (ReduceScatter, SharedMemoryOversubscribed, UNLIMITED, 64 << 10, "window_direct"),
        (ReduceScatter, SharedMemoryOversubscribed, UNLIMITED, UNLIMITED, "inplace_ring"),
        (ReduceScatter, SharedMemory, UNLIMITED, UNLIMITED, "window_direct"),
        (Broadcast, SharedMemory, UNLIMITED, UNLIMITED, "window_direct"),
        (Reduce, SharedMemory, UNLIMITED, UNLIMITED, "window_direct"),
        (Gather, SharedMemory, UNLIMITED, UNLIMITED, "window_direct"),
        (Scatter, SharedMemory, UNLIMITED, UNLIMITED, "window_direct"),
        (AllToAll, SharedMemory, UNLIMITED, UNLIMITED, "window_direct"),
        (Barrier, SharedMemory, UNLIMITED, UNLIMITED, "window_direct"),
        (AllReduce, Network, 2, 1 << 20, "recursive_doubling"),
        (AllReduce, NetworkOversubscribed, UNLIMITED, 48 << 10, "recursive_doubling"),
        (AllReduce, NetworkOversubscribed, 4, 512 << 10, "rabenseifner"),
        (AllReduce, Network, UNLIMITED, 8 << 10, "recursive_doubling"),
        (AllReduce, Network, UNLIMITED, 256 << 10, "rabenseifner"),
        (AllReduce, Network, UNLIMITED, UNLIMITED, "ring"),
        (AllReduce, Network, UNLIMITED, UNLIMITED, "rank_ordered"),
        (AllGather, Network, 2, 1 << 20, "recursive_doubling"),
        (AllGather, NetworkOversubscribed, UNLIMITED, 2 << 10, "recursive_doubling"),
        (AllGather, NetworkOversubscribed, 4, 512 << 10, "pat"),
        (AllGather, Network, UNLIMITED, 64 << 10, "pat"),
        (AllGather, Network, UNLIMITED, UNLIMITED, "ring"),
        (ReduceScatter, NetworkOversubscribed, UNLIMITED, 32 << 10, "recursive_halving"),
        (ReduceScatter, NetworkOversubscribed, 4, 256 << 10, "pat"),
        (ReduceScatter, NetworkOversubscribed, UNLIMITED, UNLIMITED, "ring"),
        (ReduceScatter, Network, UNLIMITED, 64 << 10, "pat"),
        (ReduceScatter, Network, UNLIMITED, UNLIMITED, "ring"),
        (ReduceScatter, Network, UNLIMITED, UNLIMITED, "rank_ordered"),
        (Broadcast, NetworkOversubscribed, UNLIMITED, UNLIMITED, "binomial"),
        (Broadcast, Network, 2, 1 << 20, "binomial"),
        (Broadcast, Network, UNLIMITED, 64 << 10, "binomial"),
        (Broadcast, Network, UNLIMITED, UNLIMITED, "tree"),
        (Reduce, NetworkOversubscribed, 5, UNLIMITED, "binomial"),
        (Reduce, NetworkOversubscribed, 8, 2 << 10, "rank_ordered"),
        (Reduce, NetworkOversubscribed, UNLIMITED, UNLIMITED, "binomial"),
        (Reduce, Network, 2, 1 << 20, "binomial"),
        (Reduce, Network, UNLIMITED, 64 << 10, "binomial"),
        (Reduce, Network, UNLIMITED, UNLIMITED, "tree"),
        (Reduce, Network, UNLIMITED, UNLIMITED, "rank_ordered"),
        (Gather, NetworkOversubscribed, 4, 512, "binomial"),
        (Gather, NetworkOversubscribed, UNLIMITED, UNLIMITED, "linear"),
        (Gather, Network, UNLIMITED, 4 << 10, "binomial"),
        (Gather, Network, UNLIMITED, UNLIMITED, "linear"),
        (Scatter, NetworkOversubscribed, UNLIMITED, 16 << 10, "binomial"),
        (Scatter, Network, UNLIMITED, 4 << 10, "binomial"),
        (Scatter, Network, UNLIMITED, UNLIMITED, "linear"),
        (AllToAll, Network, 2, 1 << 20, "pairwise_exchange"),
        (AllToAll, NetworkOversubscribed, 4, 16 << 10, "bruck"),
        (AllToAll, NetworkOversubscribed, 8, 8 << 10, "bruck"),
        (AllToAll, NetworkOversubscribed, 16, 4 << 10, "bruck"),
        (AllToAll, Network, UNLIMITED, 512, "bruck"),
        (AllToAll, NetworkOversubscribed, UNLIMITED, 64 << 10, "pairwise"),
        (AllToAll, NetworkOversubscribed, UNLIMITED, 512 << 10, "pairwise_exchange"),
        (AllToAll, NetworkOversubscribed, UNLIMITED, UNLIMITED, "pairwise_windowed"),
        (AllToAll, Network, UNLIMITED, UNLIMITED, "pairwise"),
        (Barrier, Network, UNLIMITED, UNLIMITED, "dissemination"),
        (Scan, SharedMemory, UNLIMITED, 64 << 10, "window_direct"),
        (Scan, Network, UNLIMITED, 64 << 10, "recursive_doubling"),
        (Scan, Network, UNLIMITED, UNLIMITED, "chain"),
        (Scan, SharedMemory, UNLIMITED, UNLIMITED, "window_direct"),
        (ExScan, SharedMemory, UNLIMITED, 64 << 10, "window_direct"),
        (ExScan, Network, UNLIMITED, 64 << 10, "recursive_doubling"),
        (ExScan, Network, UNLIMITED, UNLIMITED, "chain"),
        (ExScan, SharedMemory, UNLIMITED, UNLIMITED, "window_direct"),
    ]
};

fn built_in_rules(collective: Collective) -> impl Iterator<Item = TuningRule> {
    BUILT_IN_RULES.iter().filter(move |line| line.0 == collective).filter_map(
        |&(collective, topology, ranks_max, bytes_max, name)| {
            let algorithm = find(collective, name)?;
            Some(TuningRule { topology, ranks_max, bytes_max, algorithm })
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_rules_name_existing_algorithms() {
        for &(collective, topology, _, _, name) in BUILT_IN_RULES {
            assert!(
                find(collective, name).is_some_and(|row| row.peer_access == topology.peer_access()),
                "{collective} {name}"
            );
        }
    }

    #[test]
    fn tuning_table_round_trips() {
        let text = "all_reduce shm 2 8192 oneshot\nall_reduce shm-oversub any any inplace_ring\n\
            all_reduce gpu any 8 oneshot\nall_reduce tcp-oversub 8 any tree\nall_reduce tcp any any ring\n";
        assert_eq!(TuningTable::parse(&format!("# measured\n\n{text}")).unwrap().to_string(), text);
    }

    #[test]
    fn tuning_table_parse_error_names_line_and_reason() {
        for (line, why) in [
            ("all_reduce shm 2 8192", "4 words"),
            ("reduce_all shm 2 8192 ring", "no collective `reduce_all`"),
            ("all_reduce near 2 8192 ring", "`near`"),
            ("all_reduce shm two 8192 ring", "`two`"),
            ("all_reduce shm 2 8192 rong", "no algorithm `rong`"),
            ("all_reduce tcp 2 8192 oneshot", "does not run on Network"),
            ("all_reduce shm 2 8192 zero_copy", "does not run on SharedMemory"),
        ] {
            let error = TuningTable::parse(&format!("\n{line}")).unwrap_err();
            assert!(error.starts_with("line 2") && error.contains(why), "{error}");
        }
    }
}
