//! Search for the fastest strategy that fits.

use crate::config::StrategyKind;
use crate::cost::MAX_USEFUL_DATA_RANKS;
use crate::cost::format::{size, time};
use crate::planner::report::StrategyRow;
use crate::planner::rules::{Decision, Rule};

/// Relative step time below which another strategy replaces the tree's.
const MIN_SPEEDUP: f64 = 0.95;

/// Returns the decision of the tree, or a faster data parallel strategy that `fits`, if only data
/// ranks share the model. For example, many small buckets on many ranks are bound by latency, while
/// whole layers are not.
pub(crate) fn fastest(
    decided: Decision,
    rows: &[StrategyRow],
    bucket: f64,
    fits: impl Fn(&StrategyRow) -> bool,
) -> Decision {
    let Some(own) = rows.iter().find(|row| row.parallel == decided.parallel) else { return decided };
    if !matches!(decided.rule, Rule::Ddp | Rule::Zero1 | Rule::ShardGradOp) {
        return decided;
    }
    let step = |row: &StrategyRow| row.step_time.overlapped();
    let candidates = rows.iter().filter_map(|row| rule(row).map(|leaf| (leaf, row)));
    let best =
        candidates.filter(|(_, row)| fits(row)).min_by(|one, other| step(one.1).total_cmp(&step(other.1)));
    let Some((leaf, best)) = best.filter(|(_, row)| step(row) < MIN_SPEEDUP * step(own)) else {
        return decided;
    };
    let times = format!("a step takes {} with {}", time(step(best)), best.parallel.kind.name());
    let rather =
        format!("{} with {} in buckets of {}", time(step(own)), own.parallel.kind.name(), size(bucket));
    Decision {
        rule: leaf,
        parallel: best.parallel,
        reason: format!("{}; yet {times}, and {rather}", decided.reason),
        ..decided
    }
}

/// Returns the leaf of a data parallel strategy, unless it has too many ranks. ZeRO-1 is never
/// better than ZeRO-2.
fn rule(row: &StrategyRow) -> Option<Rule> {
    match row.parallel.kind {
        StrategyKind::Bucketed => Some(Rule::Ddp),
        StrategyKind::Zero2 => Some(Rule::ShardGradOp),
        StrategyKind::Zero3 if row.parallel.data <= MAX_USEFUL_DATA_RANKS => Some(Rule::FullShard),
        _ => None,
    }
}
