//! Balance of pipeline stages: the share of time in which each of them works.

use crate::config::StageSplit;
use crate::train::run::Run;
use std::time::Duration;
use unisono_nn::error::Result;
use unisono_parallel::mesh::GroupKind;

/// Time of steps on one rank, and the part of it in which the rank waited for nobody.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StageTimes {
    total: Duration,
    worked: Duration,
}

impl StageTimes {
    /// Adds a step.
    pub(super) fn add(&mut self, time: Duration, waited: Duration) {
        self.total += time;
        self.worked += time.saturating_sub(waited);
    }
}

/// Ratio of the busiest stage to the mean from which another division is advised.
const UNEVEN: f64 = 1.15;

impl Run {
    /// Returns the work of each pipeline stage of this rank's replica in one line; `None` without a
    /// pipeline or a step. All ranks must call this.
    ///
    /// # Errors
    /// Returns the error of a failed collective.
    pub(super) fn stage_balance(&self) -> Result<Option<String>> {
        let Some(stages) = self.groups.get(GroupKind::Pipeline) else { return Ok(None) };
        let seconds = [self.worked.total, self.worked.worked].map(|time| time.as_secs_f64());
        let mut stage_seconds = vec![0.0; seconds.len() * stages.size()];
        stages.all_gather(&seconds, &mut stage_seconds)?;
        let shares: Vec<f64> =
            stage_seconds.chunks_exact(seconds.len()).map(|times| times[1] / times[0]).collect();
        Ok(shares
            .iter()
            // A run that took no step has shares of 0 / 0.
            .all(|share| share.is_finite())
            .then(|| describe(&shares, self.config.pipeline.split)))
    }
}

fn describe(shares: &[f64], split: StageSplit) -> String {
    let percent: Vec<_> = shares.iter().map(|share| format!("{:.0} %", 100.0 * share)).collect();
    let mean = shares.iter().sum::<f64>() / shares.len() as f64;
    let largest = shares.iter().copied().fold(0.0, f64::max);
    let advice = match split {
        StageSplit::Even if largest > UNEVEN * mean => "; pipeline.split = \"cost\" may even them out",
        _ => "",
    };
    format!("stages worked {} of the time{advice}", percent.join(", "))
}

#[cfg(test)]
mod tests {
    use super::{StageSplit, describe};

    #[test]
    fn uneven_stages_are_advised_to_divide_by_cost() {
        assert_eq!(describe(&[0.5, 0.52], StageSplit::Even), "stages worked 50 %, 52 % of the time");
        assert!(describe(&[0.3, 0.6], StageSplit::Even).ends_with("may even them out"));
        assert!(describe(&[0.3, 0.6], StageSplit::Cost).ends_with("of the time"));
    }
}
