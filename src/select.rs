//! Chooses the algorithm of an operation. It is set by the caller, by the settings, or else by the
//! tuning table.

pub use crate::tuning::{Topology, TuningRule, TuningTable, UNLIMITED};

use crate::config::{Config, ReductionOrder};
use crate::error::{Error, ErrorKind, Result};
use crate::op_desc;
use crate::schedule::check::sweep;
use crate::schedule::{Algorithm, Collective, CombineOrder, GroupSpec, PeerAccess, Rank};
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// Checks that an algorithm can be set for a group of `ranks` ranks. It must be able to run
/// operations with at least one root.
///
/// # Errors
/// [`ErrorKind::Unsupported`] says what the algorithm needs.
pub(crate) fn check_settable(algorithm: &'static Algorithm, ranks: usize, topology: Topology) -> Result<()> {
    let roots = if algorithm.collective.has_root() { ranks } else { 1 };
    let spec = |root| GroupSpec::new(ranks).with_root(root);
    let root = (0..roots).find(|&root| (algorithm.supports)(&spec(root))).unwrap_or(0);
    set_by_caller(algorithm, &spec(root), topology).map(drop)
}

/// Returns the numbers of ranks near `spec` that an algorithm supports.
fn supported_ranks(algorithm: &Algorithm, spec: &GroupSpec) -> String {
    let supports = |&ranks: &usize| (algorithm.supports)(&GroupSpec::new(ranks));
    let numbers: Vec<_> =
        (1..=2 * spec.ranks.max(4)).filter(supports).map(|ranks| ranks.to_string()).collect();
    match numbers.is_empty() {
        true => "another number of ranks".to_owned(),
        false => format!("{} or some other number of ranks", numbers.join(", ")),
    }
}

/// Returns `algorithm`, which the caller has set, if it can run the operation.
///
/// # Errors
/// [`ErrorKind::Unsupported`] says what the algorithm needs, and what the operation has.
pub(crate) fn set_by_caller(
    algorithm: &'static Algorithm,
    spec: &GroupSpec,
    topology: Topology,
) -> Result<&'static Algorithm> {
    let needs = match algorithm.peer_access {
        PeerAccess::ZeroCopy => "buffers from `alloc_symmetric`, which select it automatically".to_owned(),
        access if access > topology.peer_access() => {
            "memory that all ranks reach, and this transport gives none".to_owned()
        }
        _ if !(algorithm.supports)(spec) => {
            let root =
                if algorithm.collective.has_root() { format!(", root {}", spec.root) } else { String::new() };
            format!("{}: these are {}{root}", supported_ranks(algorithm, spec), spec.ranks)
        }
        _ => return Ok(algorithm),
    };
    let text = format!("{} {} needs {needs}", algorithm.collective, algorithm.name);
    Err(Error::new(ErrorKind::Unsupported(text)))
}

/// Returns the algorithm for an operation whose longest share has `bytes` bytes.
///
/// The result depends only on values that are equal on all ranks, so all ranks select the same
/// algorithm. `narrow` is true if the result is rounded to floats of 8 or 16 bits. Over shared
/// memory, such sums are rounded only once, which needs a slower algorithm. Only an algorithm that
/// the configuration sets may round them more than once.
///
/// # Errors
/// [`ErrorKind::Unsupported`] if no rule of the table applies.
pub(crate) fn algorithm(
    collective: Collective,
    spec: &GroupSpec,
    bytes: usize,
    topology: Topology,
    narrow: bool,
    config: &Config,
) -> Result<&'static Algorithm> {
    algorithm_that_fits(collective, spec, bytes, topology, (narrow, config), |_| true)
}

/// Chooses as [`algorithm`] does, among the algorithms that `fits` accepts. `fits` must depend only
/// on values that are equal on all ranks.
pub(crate) fn algorithm_that_fits(
    collective: Collective,
    spec: &GroupSpec,
    bytes: usize,
    topology: Topology,
    (narrow, config): (bool, &Config),
    mut fits: impl FnMut(&'static Algorithm) -> bool,
) -> Result<&'static Algorithm> {
    let configured =
        config.algorithm_override(collective).filter(|row| row.peer_access <= topology.peer_access());
    let ordered = |row: &&Algorithm| {
        config.reduction_order == ReductionOrder::Unspecified || row.keeps_rank_order(spec.ranks)
    };
    let exact = |row: &Algorithm| {
        !narrow || row.rounds_once(spec.ranks) || topology.peer_access() == PeerAccess::TwoSided
    };
    if let Some(row) = configured.filter(|row| (row.supports)(spec)).filter(ordered).filter(|row| fits(row)) {
        tracing::debug!("{collective} of {bytes} bytes: {} is configured", row.name);
        return proved(row, spec);
    }
    let mut rules = config.tuning_table.rules(collective, topology, spec.ranks, bytes);
    let rule = rules.find(|TuningRule { algorithm, .. }| {
        (algorithm.supports)(spec) && ordered(algorithm) && exact(algorithm) && fits(algorithm)
    });
    let Some(TuningRule { topology, ranks_max, bytes_max, algorithm }) = rule else {
        let text = format!("no algorithm for {collective} with {} ranks", spec.ranks);
        return Err(Error::new(ErrorKind::Unsupported(text)));
    };
    tracing::debug!(
        "{collective} of {bytes} bytes, {} ranks: {} by the rule for {topology:?}, up to {} ranks and {} bytes",
        spec.ranks,
        algorithm.name,
        limit_text(ranks_max),
        limit_text(bytes_max)
    );
    proved(algorithm, spec)
}

/// Returns the algorithm for an operator that is not commutative, for any number of ranks.
///
/// # Errors
/// [`ErrorKind::Unsupported`] if the caller has set an algorithm that combines operands in another
/// order.
pub(crate) fn in_rank_order(
    collective: Collective,
    spec: &GroupSpec,
    (bytes, topology): (usize, Topology),
    set: Option<&'static Algorithm>,
    config: &Config,
) -> Result<&'static Algorithm> {
    let in_order = |row: &Algorithm| row.combine_order >= CombineOrder::RankOrder && (row.supports)(spec);
    if let Some(row) = set.filter(|row| !in_order(row)) {
        let text = format!(
            "{collective} {} does not combine in rank order, as a reduction that does not commute needs",
            row.name
        );
        return Err(Error::new(ErrorKind::Unsupported(text)));
    }
    if let Some(row) = set {
        return set_by_caller(row, spec, topology);
    }
    let mut rules = config.tuning_table.rules(collective, topology, spec.ranks, bytes);
    let rule = rules.find(|rule| in_order(rule.algorithm));
    let Some(rule) = rule else {
        let text = format!(
            "no algorithm for {collective} combines the operands of {} ranks in rank order",
            spec.ranks
        );
        return Err(Error::new(ErrorKind::Unsupported(text)));
    };
    proved(rule.algorithm, spec)
}

/// Returns `algorithm`. If a caller has registered it, it is first proved for this group.
fn proved(algorithm: &'static Algorithm, spec: &GroupSpec) -> Result<&'static Algorithm> {
    if !algorithm.is_built_in() {
        prove(algorithm, &[*spec])?;
        op_desc::register_algorithm(algorithm, spec.ranks);
    }
    Ok(algorithm)
}

/// Proves an algorithm of the caller for some groups. A process proves it once for each group.
///
/// # Errors
/// [`ErrorKind::InvalidUsage`] names the first violation.
pub(crate) fn prove(algorithm: &'static Algorithm, specs: &[GroupSpec]) -> Result<()> {
    static PROVED: Mutex<BTreeSet<(usize, usize, Rank, usize)>> = Mutex::new(BTreeSet::new());
    // An algorithm is never freed, so its address identifies it.
    let key =
        |spec: &GroupSpec| (std::ptr::from_ref(algorithm).addr(), spec.ranks, spec.root, spec.aggregation);
    let is_proved =
        |spec: &GroupSpec| PROVED.lock().unwrap_or_else(PoisonError::into_inner).contains(&key(spec));
    let open: Vec<GroupSpec> = specs.iter().filter(|spec| !is_proved(spec)).copied().collect();
    // The proof runs without the lock, because it may take seconds. At worst, two threads prove the
    // same groups.
    require_right(algorithm, &open)?;
    PROVED.lock().unwrap_or_else(PoisonError::into_inner).extend(open.iter().map(key));
    Ok(())
}

/// Runs the proof of an algorithm for some groups.
///
/// # Errors
/// As [`prove`].
pub(crate) fn require_right(algorithm: &Algorithm, specs: &[GroupSpec]) -> Result<()> {
    let Some((spec, violation)) = sweep(algorithm, specs).violation else { return Ok(()) };
    Err(Error::invalid_usage(format!(
        "the schedule of {} {} is wrong with {} ranks and root {}: {violation}",
        algorithm.collective, algorithm.name, spec.ranks, spec.root
    )))
}

/// Returns the limit of a rule as text for the log.
fn limit_text(bound: usize) -> String {
    if bound == UNLIMITED { "any number of".to_owned() } else { bound.to_string() }
}

/// Returns the number of chunks that PAT packs into one message.
///
/// The number is the largest power of two whose chunks fit into a slot, at most half the ranks.
pub(crate) fn aggregation(collective: Collective, ranks: usize, bytes: usize, slot_bytes: usize) -> usize {
    let chunk = if collective == Collective::AllReduce { bytes.div_ceil(ranks) } else { bytes };
    let cap = ranks.div_ceil(2).max(1).next_power_of_two();
    let fits = (slot_bytes / chunk.max(1)).max(1);
    cap.min(1 << fits.ilog2())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse_algorithms;

    const BOTH: [bool; 2] = [false, true];

    fn name(
        collective: Collective,
        ranks: usize,
        bytes: usize,
        (topology, narrow): (Topology, bool),
        config: &Config,
    ) -> &'static str {
        let spec = GroupSpec::new(ranks);
        algorithm(collective, &spec, bytes, topology, narrow, config).unwrap().name
    }

    #[test]
    fn selection_serves_every_collective_on_every_topology() {
        for ranks in 1..=17 {
            for collective in Collective::ALL {
                for topology in Topology::ALL {
                    let spec = GroupSpec::new(ranks);
                    let found = BOTH.map(|narrow| {
                        algorithm(collective, &spec, 1 << 30, topology, narrow, &Config::default())
                    });
                    assert!(found.iter().all(|found| found.is_ok()), "{collective} with {ranks} ranks");
                }
            }
        }
    }

    #[test]
    fn selection_prefers_measured_rules() {
        let text = "all_reduce shm 2 1000 ring\nall_reduce shm 4 any tree\n";
        let table = TuningTable::parse(text).unwrap();
        let config = Config { tuning_table: table, ..Config::default() };
        let selected =
            |ranks, bytes, topology| name(Collective::AllReduce, ranks, bytes, (topology, false), &config);
        let windows = |ranks, bytes| selected(ranks, bytes, Topology::SharedMemory);
        assert_eq!([windows(2, 1000), windows(2, 1001), windows(3, 8)], ["ring", "tree", "tree"]);
        assert_eq!([windows(5, 8), selected(2, 8, Topology::Network)], ["oneshot", "recursive_doubling"]);
    }

    #[test]
    fn selection_with_rank_order_keeps_ordered_algorithms() {
        let config = Config {
            reduction_order: ReductionOrder::RankOrder,
            algorithms: parse_algorithms("ring").unwrap(),
            ..Config::default()
        };
        let selected =
            |collective, ranks, bytes, topology| name(collective, ranks, bytes, (topology, false), &config);
        use Collective::{AllGather, AllReduce, Reduce, ReduceScatter};
        use Topology::{Network, SharedMemory};
        assert_eq!(
            [AllReduce, ReduceScatter, Reduce].map(|c| selected(c, 3, 8, Network)),
            ["rank_ordered"; 3]
        );
        assert_eq!(
            [selected(AllReduce, 2, 8, Network), selected(AllReduce, 3, 8, SharedMemory)],
            ["ring", "oneshot"]
        );
        assert_eq!(selected(AllGather, 3, 8, Network), "ring", "nothing is reduced");
    }

    #[test]
    fn selection_oversubscribed_rules_fall_back_to_network() {
        let table = TuningTable::parse("reduce tcp-oversub any 9 chain\nreduce tcp any 99 tree\n").unwrap();
        let config = Config { tuning_table: table, ..Config::default() };
        let selected = |bytes, topology| name(Collective::Reduce, 3, bytes, (topology, false), &config);
        assert_eq!(
            [9, 99, 1 << 30].map(|bytes| selected(bytes, Topology::NetworkOversubscribed)),
            ["chain", "tree", "binomial"]
        );
        assert_eq!([9, 99].map(|bytes| selected(bytes, Topology::Network)), ["tree"; 2]);
    }

    #[test]
    fn selection_shm_oversubscribed_falls_back_and_gpu_does_not() {
        let table = "reduce shm-oversub any 9 chain\nreduce shm any 99 tree\nreduce tcp any 99 binomial\n";
        let table = TuningTable::parse(table).unwrap();
        let config = Config { tuning_table: table, ..Config::default() };
        let selected = |bytes, topology| name(Collective::Reduce, 3, bytes, (topology, false), &config);
        use Topology::{Gpu, SharedMemory, SharedMemoryOversubscribed};
        assert_eq!(
            [9, 99, 100].map(|bytes| selected(bytes, SharedMemoryOversubscribed)),
            ["chain", "tree", "window_direct"]
        );
        assert_eq!([SharedMemory, Gpu].map(|topology| selected(9, topology)), ["tree", "window_direct"]);
    }

    #[test]
    fn selection_relays_long_all_reduce_unless_ordered() {
        let selected = |ranks, topology, order| {
            let config = Config { reduction_order: order, ..Config::default() };
            name(Collective::AllReduce, ranks, 1 << 20, (topology, false), &config)
        };
        use Topology::{Gpu, SharedMemory, SharedMemoryOversubscribed};
        let names = |order| {
            [(2, SharedMemory), (2, Gpu), (3, SharedMemory), (3, SharedMemoryOversubscribed)]
                .map(|(ranks, topology)| selected(ranks, topology, order))
        };
        assert_eq!(
            names(ReductionOrder::Unspecified),
            ["inplace_ring", "twoshot", "twoshot", "inplace_ring"]
        );
        assert_eq!(names(ReductionOrder::RankOrder), ["inplace_ring", "twoshot", "twoshot", "twoshot"]);
    }

    #[test]
    fn selection_relays_reduce_scatter_only_oversubscribed() {
        let selected = |topology, bytes, narrow| {
            name(Collective::ReduceScatter, 4, bytes, (topology, narrow), &Config::default())
        };
        use Topology::{SharedMemory, SharedMemoryOversubscribed};
        assert_eq!(
            [selected(SharedMemoryOversubscribed, 1 << 20, false), selected(SharedMemory, 1 << 20, false)],
            ["inplace_ring", "window_direct"]
        );
        assert_eq!(
            [
                selected(SharedMemoryOversubscribed, 1 << 10, false),
                selected(SharedMemoryOversubscribed, 1 << 20, true)
            ],
            ["window_direct"; 2]
        );
    }

    #[test]
    fn selection_rounds_narrow_floats_once_unless_overridden() {
        let table = TuningTable::parse("all_reduce shm-oversub any any inplace_ring").unwrap();
        let measured = Config { tuning_table: table, ..Config::default() };
        let insists = Config { algorithms: parse_algorithms("inplace_ring").unwrap(), ..Config::default() };
        let selected = |ranks, narrow, config| {
            name(
                Collective::AllReduce,
                ranks,
                1 << 20,
                (Topology::SharedMemoryOversubscribed, narrow),
                config,
            )
        };
        let built_in = Config::default();
        for config in [&built_in, &measured] {
            assert_eq!(
                [selected(4, false, config), selected(4, true, config), selected(2, true, config)],
                ["inplace_ring", "twoshot", "inplace_ring"]
            );
        }
        assert_eq!(selected(4, true, &insists), "inplace_ring");
        let table = TuningTable::parse("all_reduce shm any any ring").unwrap();
        let hops = Config { tuning_table: table, ..Config::default() };
        assert_eq!(
            [selected(4, false, &hops), selected(4, true, &hops)],
            ["ring", "twoshot"],
            "a ring rounds at every hop"
        );
        assert_eq!(name(Collective::AllReduce, 4, 1 << 30, (Topology::Network, true), &measured), "ring");
    }

    #[test]
    fn aggregation_shrinks_with_chunk_size() {
        let aggregated = |bytes| aggregation(Collective::AllGather, 16, bytes, 128 << 10);
        assert_eq!(
            [aggregated(0), aggregated(8), aggregated(16 << 10), aggregated(64 << 10), aggregated(1 << 20)],
            [8, 8, 8, 2, 1]
        );
        assert_eq!(aggregation(Collective::AllGather, 5, 8, 1 << 17), 4);
        assert_eq!(aggregation(Collective::AllGather, 1, 8, 1 << 17), 1);
    }
}
