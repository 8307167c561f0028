//! Choice between the decision tree and the fastest mesh.

use crate::cost::format::time;
use crate::cost::{ModelShape, ParallelConfig};
use crate::planner::rules::{Decision, Rule, reason};
use crate::planner::search::{Candidate, Search};
use std::cmp::Reverse;
use unisono_nn::error::Result;

/// Maximum step time of a less simple mesh, relative to that of a simpler one. A mesh that saves
/// less is not worth its complexity.
const MIN_SPEEDUP: f64 = 0.95;

/// Returns the decision of the tree, or the simplest of the fastest candidates if its step is
/// clearly shorter. For example, many small buckets on many ranks are bound by latency, while whole
/// layers are not.
///
/// # Errors
/// Returns the error of the tree if there is no candidate.
pub(super) fn choose(decided: Result<Decision>, search: &Search, shape: &ModelShape) -> Result<Decision> {
    let Some(best) = simplest(search) else { return decided };
    let chosen = decided.as_ref().ok().and_then(|decision| search.find(&decision.parallel));
    if chosen.is_some_and(|chosen| best.seconds() >= MIN_SPEEDUP * chosen.seconds()) {
        return decided;
    }
    let rule = Rule::of(&best.parallel);
    let why = match (&decided, chosen) {
        (Ok(decision), Some(chosen)) => format!("{}; yet {}", decision.reason, faster(best, chosen)),
        (Ok(decision), None) => {
            format!("{}; yet ranks cannot have equal parts of the batch or of the model", decision.reason)
        }
        (Err(_), _) => reason(rule, &best.parallel, shape),
    };
    let walk = decided.map(|decision| decision.walk).unwrap_or_default();
    Ok(Decision::new(rule, best.parallel, why, walk))
}

/// Returns the simplest candidate that is nearly as fast as the fastest. Criteria are few stages,
/// then few ranks per sequence, no recomputation, few experts per rank, few parts of layers, and
/// little sharding.
fn simplest(search: &Search) -> Option<&Candidate> {
    let fastest = search.fitting.first()?.seconds();
    let nearly_fastest =
        search.fitting.iter().take_while(|candidate| fastest >= MIN_SPEEDUP * candidate.seconds());
    nearly_fastest.min_by_key(|candidate| {
        let ParallelConfig { kind, tensor, pipeline, context, expert, activation_checkpointing, .. } =
            candidate.parallel;
        (pipeline, context, activation_checkpointing, Reverse(expert), tensor, kind as usize)
    })
}

fn faster(best: &Candidate, chosen: &Candidate) -> String {
    let words = |candidate: &Candidate| {
        let again = if candidate.parallel.activation_checkpointing { ", recomputed" } else { "" };
        format!("{} ({}{again})", candidate.parallel.kind.name(), candidate.parallel.words())
    };
    format!(
        "a step takes {} with {}, and {} with {}",
        time(best.seconds()),
        words(best),
        time(chosen.seconds()),
        words(chosen)
    )
}
