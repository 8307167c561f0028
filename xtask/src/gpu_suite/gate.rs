//! Answers of the stage of driver rules, and how later stages follow them.

use super::rows::{Row, is, number, text};

/// Answers about grids that run at once. `None` is no answer: stages then run as if it were yes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Gate {
    pub(super) plain: Option<bool>,
    pub(super) cooperative: Option<bool>,
    pub(super) graphs: Option<bool>,
}

impl Gate {
    /// Reads the rows about overlap. Two grids decide: eight that do not overlap are a result of
    /// the later stages.
    pub(super) fn of<'a>(rows: impl Iterator<Item = &'a Row>) -> Self {
        let mut gate = Self::default();
        for row in rows.filter(|row| text(row, "rule") == "overlap" && number(row, "grids") == Some(2.0)) {
            let answer = row.contains_key("answer").then(|| is(row, "answer"));
            match text(row, "launch") {
                "plain" => gate.plain = answer,
                "cooperative" => gate.cooperative = answer,
                "graph" => gate.graphs = answer,
                _ => {}
            }
        }
        gate
    }

    /// Returns true if only cooperative launches run at once. Those of the library are plain.
    pub(super) fn needs_cooperative_launches(self) -> bool {
        self.plain == Some(false) && self.cooperative != Some(false)
    }

    /// Returns true if launches must be plain from here on.
    pub(super) fn needs_plain_launches(self) -> bool {
        self.cooperative == Some(false) && self.plain != Some(false)
    }

    /// Returns true unless graphs do not run at once.
    pub(super) fn replays(self) -> bool {
        self.graphs != Some(false)
    }

    /// Returns true if no two grids run at once, so that ranks of one GPU cannot wait for each
    /// other.
    pub(super) fn nothing_overlaps(self) -> bool {
        self.cooperative == Some(false) && self.plain == Some(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu_suite::rows::row;
    use serde_json::json;

    fn gate(answers: [Option<bool>; 3]) -> Gate {
        let launches = ["plain", "cooperative", "graph"].into_iter().zip(answers);
        let rows: Vec<Row> = launches
            .filter_map(|(launch, answer)| {
                Some(row(json!({"rule": "overlap", "launch": launch, "grids": 2, "answer": answer?})))
            })
            .collect();
        Gate::of(rows.iter())
    }

    #[test]
    fn gate_without_answers_changes_nothing() {
        let gate = gate([None; 3]);
        assert_eq!(gate, Gate::default());
        assert!(gate.replays() && !gate.needs_plain_launches() && !gate.nothing_overlaps());
    }

    #[test]
    fn gate_answers_choose_launches_and_stages() {
        assert!(gate([Some(true), Some(false), None]).needs_plain_launches());
        assert!(gate([None, Some(false), None]).needs_plain_launches());
        assert!(!gate([Some(true), Some(true), Some(false)]).replays());
        let nothing = gate([Some(false), Some(false), Some(false)]);
        assert!(nothing.nothing_overlaps() && !nothing.needs_plain_launches());
        assert!(!gate([Some(true), Some(false), None]).nothing_overlaps());
        assert!(gate([Some(false), Some(true), None]).needs_cooperative_launches());
        assert!(!gate([None, Some(true), None]).needs_cooperative_launches());
    }
}
