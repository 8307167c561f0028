//! Of the strategies that fit, the quickest.

use super::answer::Row;
use super::decide::{Decision, Leaf};
use super::table::{size, time};
use crate::config::StrategyKind;
use crate::train::DATA_RANKS_MAX;

/// Seconds of a step below which it is worth leaving the tree, as a share of those of the tree's strategy.
const CLEARLY: f64 = 0.95;

/// What the tree decided; or where data ranks alone share, another strategy that `fits` if its step is clearly shorter. Many small
/// buckets on many ranks are bound by latency, for instance, where whole layers are not.
pub(super) fn quickest(
    decided: Decision,
    rows: &[Row],
    bucket: f64,
    fits: impl Fn(&Row) -> bool,
) -> Decision {
    let Some(own) = rows.iter().find(|row| row.cut == decided.cut) else { return decided };
    if !matches!(decided.leaf, Leaf::Ddp | Leaf::ShardGradOp) {
        return decided;
    }
    let step = |row: &Row| row.pace.overlapped();
    let candidates = rows.iter().filter_map(|row| leaf(row).map(|leaf| (leaf, row)));
    let best =
        candidates.filter(|(_, row)| fits(row)).min_by(|one, other| step(one.1).total_cmp(&step(other.1)));
    let Some((leaf, best)) = best.filter(|(_, row)| step(row) < CLEARLY * step(own)) else { return decided };
    let times = format!("a step takes {} with {}", time(step(best)), best.cut.kind.name());
    let rather = format!("{} with {} in buckets of {}", time(step(own)), own.cut.kind.name(), size(bucket));
    Decision { leaf, cut: best.cut, why: format!("{}; yet {times}, and {rather}", decided.why), ..decided }
}

/// The leaf of a strategy of data ranks, if there are not too many of them for it. ZeRO-1 is never better than ZeRO-2.
fn leaf(row: &Row) -> Option<Leaf> {
    match row.cut.kind {
        StrategyKind::Bucketed => Some(Leaf::Ddp),
        StrategyKind::Zero2 => Some(Leaf::ShardGradOp),
        StrategyKind::Zero3 if row.cut.data <= DATA_RANKS_MAX => Some(Leaf::FullShard),
        _ => None,
    }
}
