//! Which algorithm serves an operation, when nobody insists on one.

mod table;

pub use table::{ANY, Choice, Medium, Table};

use crate::config::{Config, Order};
use crate::error::{Error, ErrorKind, Result};
use crate::schedule::{Algorithm, Collective, Reach, Spec};

/// The algorithm for an operation whose longest share has `bytes` bytes.
///
/// Depends on nothing that differs between ranks, so that all choose alike. `narrow`: what is combined is rounded to floats
/// of 8 or 16 bits. In windows they are rounded once, which is worth more than a faster way; only who asks for another gets it.
pub(crate) fn algorithm(
    collective: Collective,
    spec: &Spec,
    bytes: usize,
    medium: Medium,
    narrow: bool,
    config: &Config,
) -> Result<&'static Algorithm> {
    let asked_for = config.algorithm(collective).filter(|row| row.reach <= medium.reach());
    let ordered = |row: &&Algorithm| config.order == Order::Any || table::is_in_rank_order(row, spec.ranks);
    let exact =
        |row: &Algorithm| !narrow || table::rounds_once(row, spec.ranks) || medium.reach() == Reach::Messages;
    if let Some(row) = asked_for.filter(|row| (row.fits)(spec)).filter(ordered) {
        tracing::debug!(target: "select", "{collective} of {bytes} bytes: {} was asked for", row.name);
        return Ok(row);
    }
    let mut choices = config.table.choices(collective, medium, spec.ranks, bytes);
    let choice = choices
        .find(|Choice { algorithm, .. }| (algorithm.fits)(spec) && ordered(algorithm) && exact(algorithm));
    let Some(Choice { medium, ranks_max, bytes_max, algorithm }) = choice else {
        let text = format!("no algorithm for {collective} with {} ranks", spec.ranks);
        return Err(Error::new(ErrorKind::Unavailable(text)));
    };
    tracing::debug!(
        target: "select",
        "{collective} of {bytes} bytes, {} ranks: {} by the line for {medium:?}, up to {} ranks and {} bytes",
        spec.ranks, algorithm.name, bound(ranks_max), bound(bytes_max)
    );
    Ok(algorithm)
}

fn bound(bound: usize) -> String {
    if bound == ANY { "any number of".to_owned() } else { bound.to_string() }
}

/// How many chunks PAT packs into one message: as many as still fit a slot, at most half the ranks.
pub(crate) fn aggregation(collective: Collective, ranks: usize, bytes: usize, slot_bytes: usize) -> usize {
    let chunk = if collective == Collective::AllReduce { bytes.div_ceil(ranks) } else { bytes };
    let cap = ranks.div_ceil(2).max(1).next_power_of_two();
    let fits = (slot_bytes / chunk.max(1)).max(1);
    cap.min(1 << fits.ilog2())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::algorithms;

    const BOTH: [bool; 2] = [false, true];

    fn name(
        collective: Collective,
        ranks: usize,
        bytes: usize,
        (medium, narrow): (Medium, bool),
        config: &Config,
    ) -> &'static str {
        let spec = Spec { ranks, root: 0, aggregation: 1 };
        algorithm(collective, &spec, bytes, medium, narrow, config).unwrap().name
    }

    #[test]
    fn every_collective_is_served_anywhere() {
        for ranks in 1..=17 {
            for collective in Collective::ALL {
                for medium in Medium::ALL {
                    let spec = Spec { ranks, root: 0, aggregation: 1 };
                    let found = BOTH.map(|narrow| {
                        algorithm(collective, &spec, 1 << 30, medium, narrow, &Config::default())
                    });
                    assert!(found.iter().all(|found| found.is_ok()), "{collective} with {ranks} ranks");
                }
            }
        }
    }

    #[test]
    fn what_was_measured_comes_before_what_is_built_in() {
        let text = "all_reduce windows 2 1000 ring\nall_reduce windows 4 any tree\n";
        let table = Table::parse(text).unwrap();
        let config = Config { table, ..Config::default() };
        let of = |ranks, bytes, medium| name(Collective::AllReduce, ranks, bytes, (medium, false), &config);
        let windows = |ranks, bytes| of(ranks, bytes, Medium::Windows);
        assert_eq!([windows(2, 1000), windows(2, 1001), windows(3, 8)], ["ring", "tree", "tree"]);
        assert_eq!([windows(5, 8), of(2, 8, Medium::Messages)], ["oneshot", "doubling"]);
    }

    #[test]
    fn an_order_leaves_only_algorithms_that_keep_it() {
        let config =
            Config { order: Order::Ranks, algorithms: algorithms("ring").unwrap(), ..Config::default() };
        let of = |collective, ranks, bytes, medium| name(collective, ranks, bytes, (medium, false), &config);
        use Collective::{AllGather, AllReduce, Reduce, ReduceScatter};
        use Medium::{Messages, Windows};
        assert_eq!([AllReduce, ReduceScatter, Reduce].map(|c| of(c, 3, 8, Messages)), ["ordered"; 3]);
        assert_eq!([of(AllReduce, 2, 8, Messages), of(AllReduce, 3, 8, Windows)], ["ring", "oneshot"]);
        assert_eq!(of(AllGather, 3, 8, Messages), "ring", "nothing is reduced");
    }

    #[test]
    fn crowded_ranks_have_lines_of_their_own_and_else_those_for_messages() {
        let table = Table::parse("reduce crowded any 9 chain\nreduce messages any 99 tree\n").unwrap();
        let config = Config { table, ..Config::default() };
        let of = |bytes, medium| name(Collective::Reduce, 3, bytes, (medium, false), &config);
        assert_eq!([9, 99, 1 << 30].map(|bytes| of(bytes, Medium::Crowded)), ["chain", "tree", "binomial"]);
        assert_eq!([9, 99].map(|bytes| of(bytes, Medium::Messages)), ["tree"; 2]);
    }

    #[test]
    fn windows_of_crowds_have_lines_of_their_own_and_else_those_for_windows_and_devices_only_their_own() {
        let table = "reduce crowded-windows any 9 chain\nreduce windows any 99 tree\nreduce messages any 99 binomial\n";
        let table = Table::parse(table).unwrap();
        let config = Config { table, ..Config::default() };
        let of = |bytes, medium| name(Collective::Reduce, 3, bytes, (medium, false), &config);
        use Medium::{CrowdedWindows, Device, Windows};
        assert_eq!([9, 99, 100].map(|bytes| of(bytes, CrowdedWindows)), ["chain", "tree", "direct"]);
        assert_eq!([Windows, Device].map(|medium| of(9, medium)), ["tree", "direct"]);
    }

    #[test]
    fn long_sums_are_relayed_between_two_and_in_crowds_unless_the_order_counts() {
        let of = |ranks, medium, order| {
            let config = Config { order, ..Config::default() };
            name(Collective::AllReduce, ranks, 1 << 20, (medium, false), &config)
        };
        use Medium::{CrowdedWindows, Device, Windows};
        let names = |order| {
            [(2, Windows), (2, Device), (3, Windows), (3, CrowdedWindows)]
                .map(|(ranks, medium)| of(ranks, medium, order))
        };
        assert_eq!(names(Order::Any), ["relay", "twoshot", "twoshot", "relay"]);
        assert_eq!(names(Order::Ranks), ["relay", "twoshot", "twoshot", "twoshot"]);
    }

    #[test]
    fn shares_are_relayed_in_crowds_alone() {
        let of = |medium, bytes, narrow| {
            name(Collective::ReduceScatter, 4, bytes, (medium, narrow), &Config::default())
        };
        use Medium::{CrowdedWindows, Windows};
        assert_eq!([of(CrowdedWindows, 1 << 20, false), of(Windows, 1 << 20, false)], ["relay", "direct"]);
        assert_eq!([of(CrowdedWindows, 1 << 10, false), of(CrowdedWindows, 1 << 20, true)], ["direct"; 2]);
    }

    #[test]
    fn narrow_floats_of_many_are_rounded_once_unless_somebody_insists() {
        let table = Table::parse("all_reduce crowded-windows any any relay").unwrap();
        let measured = Config { table, ..Config::default() };
        let insists = Config { algorithms: algorithms("relay").unwrap(), ..Config::default() };
        let of = |ranks, narrow, config| {
            name(Collective::AllReduce, ranks, 1 << 20, (Medium::CrowdedWindows, narrow), config)
        };
        let built_in = Config::default();
        for config in [&built_in, &measured] {
            assert_eq!(
                [of(4, false, config), of(4, true, config), of(2, true, config)],
                ["relay", "twoshot", "relay"]
            );
        }
        assert_eq!(of(4, true, &insists), "relay");
        let table = Table::parse("all_reduce windows any any ring").unwrap();
        let hops = Config { table, ..Config::default() };
        assert_eq!(
            [of(4, false, &hops), of(4, true, &hops)],
            ["ring", "twoshot"],
            "a ring rounds at every hop"
        );
        assert_eq!(name(Collective::AllReduce, 4, 1 << 30, (Medium::Messages, true), &measured), "ring");
    }

    #[test]
    fn aggregation_shrinks_as_chunks_grow() {
        let of = |bytes| aggregation(Collective::AllGather, 16, bytes, 128 << 10);
        assert_eq!([of(0), of(8), of(16 << 10), of(64 << 10), of(1 << 20)], [8, 8, 8, 2, 1]);
        assert_eq!(aggregation(Collective::AllGather, 5, 8, 1 << 17), 4);
        assert_eq!(aggregation(Collective::AllGather, 1, 8, 1 << 17), 1);
    }
}
