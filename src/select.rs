//! Which algorithm serves an operation, when nobody insists on one.

use crate::config::Config;
use crate::error::{Error, ErrorKind, Result};
use crate::schedule::{Algorithm, Collective, Reach, Spec, find};

/// One line of the table: up to `bytes_max` bytes in a share, use `name`.
struct Choice {
    collective: Collective,
    /// Whether ranks share memory.
    window: bool,
    bytes_max: usize,
    name: &'static str,
}

const ANY: usize = usize::MAX;

/// In the order of preference; the first that fits is taken.
const TABLE: &[Choice] = {
    use Collective::*;
    const fn shared(collective: Collective, bytes_max: usize, name: &'static str) -> Choice {
        Choice { collective, window: true, bytes_max, name }
    }
    const fn linked(collective: Collective, bytes_max: usize, name: &'static str) -> Choice {
        Choice { collective, window: false, bytes_max, name }
    }
    &[
        shared(AllReduce, 8 << 10, "oneshot"),
        shared(AllReduce, ANY, "twoshot"),
        shared(AllGather, ANY, "direct"),
        shared(ReduceScatter, ANY, "direct"),
        shared(Broadcast, ANY, "direct"),
        shared(Reduce, ANY, "direct"),
        shared(Gather, ANY, "direct"),
        shared(Scatter, ANY, "direct"),
        shared(AllToAll, ANY, "direct"),
        shared(Barrier, ANY, "direct"),
        linked(AllReduce, 8 << 10, "doubling"),
        linked(AllReduce, 256 << 10, "halving"),
        linked(AllReduce, ANY, "ring"),
        linked(AllGather, 16 << 10, "pat"),
        linked(AllGather, ANY, "ring"),
        linked(ReduceScatter, 16 << 10, "pat"),
        linked(ReduceScatter, ANY, "ring"),
        linked(Broadcast, 64 << 10, "binomial"),
        linked(Broadcast, ANY, "tree"),
        linked(Reduce, 64 << 10, "binomial"),
        linked(Reduce, ANY, "tree"),
        linked(Gather, 4 << 10, "binomial"),
        linked(Gather, ANY, "linear"),
        linked(Scatter, 4 << 10, "binomial"),
        linked(Scatter, ANY, "linear"),
        linked(AllToAll, 512, "bruck"),
        linked(AllToAll, ANY, "pairwise"),
        linked(Barrier, ANY, "dissemination"),
    ]
};

/// The algorithm for an operation whose longest share has `bytes` bytes.
///
/// Depends on nothing that differs between ranks, so that all choose alike.
pub(crate) fn algorithm(
    collective: Collective,
    spec: &Spec,
    bytes: usize,
    has_window: bool,
    config: &Config,
) -> Result<&'static Algorithm> {
    let asked_for = config.algorithm(collective).filter(|row| reaches(row, has_window));
    if let Some(row) = asked_for.filter(|row| (row.fits)(spec)) {
        return Ok(row);
    }
    let rows = TABLE.iter().filter(|choice| choice.collective == collective && bytes <= choice.bytes_max);
    let rows = rows.filter(|choice| has_window || !choice.window);
    let row = rows.filter_map(|choice| find(collective, choice.name)).find(|row| (row.fits)(spec));
    row.ok_or_else(|| {
        Error::new(ErrorKind::Unavailable(format!("no algorithm for {collective} with {} ranks", spec.ranks)))
    })
}

/// Whether ranks can run `row`. Those that reach buffers are used by themselves for buffers that can be reached.
fn reaches(row: &Algorithm, has_window: bool) -> bool {
    match row.reach {
        Reach::Messages => true,
        Reach::Windows => has_window,
        Reach::Buffers => false,
    }
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

    #[test]
    fn every_name_in_the_table_exists_and_every_collective_is_served_anywhere() {
        for choice in TABLE {
            let row = find(choice.collective, choice.name);
            assert!(
                row.is_some_and(|row| (row.reach == Reach::Windows) == choice.window),
                "{} {}",
                choice.collective,
                choice.name
            );
        }
        for ranks in 1..=17 {
            for collective in Collective::ALL {
                for has_window in [false, true] {
                    let spec = Spec { ranks, root: 0, aggregation: 1 };
                    let found = algorithm(collective, &spec, 1 << 30, has_window, &Config::default());
                    assert!(found.is_ok(), "{collective} with {ranks} ranks");
                }
            }
        }
    }

    #[test]
    fn aggregation_shrinks_as_chunks_grow() {
        let of = |bytes| aggregation(Collective::AllGather, 16, bytes, 128 << 10);
        assert_eq!([of(0), of(8), of(16 << 10), of(64 << 10), of(1 << 20)], [8, 8, 8, 2, 1]);
        assert_eq!(aggregation(Collective::AllGather, 5, 8, 1 << 17), 4);
        assert_eq!(aggregation(Collective::AllGather, 1, 8, 1 << 17), 1);
    }
}
