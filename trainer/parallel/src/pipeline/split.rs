//! Division of a model into stages.
//!
//! The units of a model of L layers are the embedding (unit 0), the layers (1 to L) and the head
//! (L+1). The embedding belongs to the first stage and the head to the last. Chunk and rank of a
//! stage follow from [`Schedule::location`](crate::pipeline::Schedule::location).

use std::ops::Range;
use unisono_nn::counted;
use unisono_nn::error::{Error, Result};

/// Rule that divides layers into stages.
#[derive(Clone, Debug, PartialEq)]
pub enum Split {
    /// As many layers per stage as possible without a difference above 1.
    Even,
    /// Stage `s` ends after this number times `s + 1` layers, rounded up: 2.5 makes stages of 3 and
    /// 2 layers in turn. The last stage holds the rest.
    LayersPerStage(f64),
    /// Number of layers before the end of each stage.
    Ends(Vec<usize>),
    /// Cost of each unit. The largest stage is as small as possible, and then the sum of squares.
    ByCost(Vec<f64>),
}

impl Split {
    /// Returns the units of each of `stages` stages.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a stage would be empty, or layers would be left.
    pub fn divide(&self, layers: usize, stages: usize) -> Result<Vec<Range<usize>>> {
        if stages == 0 {
            return Err(Error::invalid("a model of 0 pipeline stages"));
        }
        match self {
            Self::Even if layers < stages => Err(Error::invalid(format!(
                "{} cannot be divided into {stages} pipeline stages",
                counted(layers, "layer")
            ))),
            Self::Even => from_layers(layers, (1..=stages).map(|stage| stage * layers / stages).collect()),
            Self::LayersPerStage(number) => from_layers(layers, rounded(*number, layers, stages)?),
            Self::Ends(ends) if ends.len() != stages => {
                Err(Error::invalid(format!("{} ends of {stages} pipeline stages", ends.len())))
            }
            Self::Ends(ends) => from_layers(layers, ends.clone()),
            Self::ByCost(costs) => by_cost(costs, layers, stages),
        }
    }
}

/// Returns units by the number of layers before the end of each stage.
fn from_layers(layers: usize, ends: Vec<usize>) -> Result<Vec<Range<usize>>> {
    if ends.last() != Some(&layers) {
        let last = ends.last().copied().unwrap_or(0);
        return Err(Error::invalid(format!("pipeline stages end after {last} layers: there are {layers}")));
    }
    let last = ends.len() - 1;
    let ends = ends.iter().enumerate().map(|(stage, &end)| if stage == last { layers + 2 } else { end + 1 });
    ranges(&ends.collect::<Vec<_>>())
}

fn ranges(ends: &[usize]) -> Result<Vec<Range<usize>>> {
    let starts = std::iter::once(0).chain(ends.iter().copied());
    let ranges: Vec<_> = starts.zip(ends).map(|(start, &end)| start..end).collect();
    match ranges.iter().position(|range| range.is_empty()) {
        Some(stage) => Err(Error::invalid(format!("pipeline stage {stage} holds no layer"))),
        None => Ok(ranges),
    }
}

/// Returns the number of layers before the end of each stage, for a fractional number per stage.
fn rounded(number: f64, layers: usize, stages: usize) -> Result<Vec<usize>> {
    // A product that is whole but for rounding is whole.
    let end = |stage: usize| (number * stage as f64 - 1e-9).ceil() as usize;
    if !number.is_finite() || number < 1.0 || end(stages - 1) >= layers || end(stages) < layers {
        let what =
            format!("layers_per_stage = {number} does not divide {layers} layers into {stages} stages");
        let (least, most) =
            (layers as f64 / stages as f64, layers.saturating_sub(1) as f64 / (stages - 1).max(1) as f64);
        return Err(Error::invalid(format!(
            "{what}: it is at least 1, from {least:.2} and at most {most:.2}"
        )));
    }
    Ok((1..=stages).map(|stage| end(stage).min(layers)).collect())
}

fn by_cost(costs: &[f64], layers: usize, stages: usize) -> Result<Vec<Range<usize>>> {
    let valid = costs.iter().all(|cost| (0.0..1e15).contains(cost));
    if costs.len() != layers + 2 || !valid {
        let what = format!("{layers} layers, embedding and head have {} costs from 0", layers + 2);
        return Err(Error::invalid(format!("{what}: {} are given", costs.len())));
    }
    if stages > costs.len() {
        return Err(Error::invalid(format!("{} units make no {stages} pipeline stages", costs.len())));
    }
    // The largest stage limits the time of a step, so it is made small first. Among those
    // divisions, the sum of squares prefers even ones.
    let (largest, _) = optimum(costs, stages, f64::max);
    let squares = |sum: f64, stage: f64| if stage <= largest { sum + stage * stage } else { f64::INFINITY };
    ranges(&optimum(costs, stages, squares).1)
}

/// Returns the least value over all divisions, and the ends of the stages that reach it. `extend`
/// returns the value of some stages and one more, from their value and its cost.
///
/// Dynamic programming: the best division of `end` units into `stage` stages ends with a stage from
/// some `start`, after the best division of `start` units into one stage less.
fn optimum(costs: &[f64], stages: usize, extend: impl Fn(f64, f64) -> f64) -> (f64, Vec<usize>) {
    let sums: Vec<f64> = std::iter::once(0.0).chain(costs.iter().scan(0.0, add)).collect();
    let units = costs.len();
    let mut values = vec![f64::INFINITY; units + 1];
    values[0] = 0.0;
    let mut starts = Vec::new();
    for stage in 1..=stages {
        let best = |end: usize| {
            let value = |start: usize| (extend(values[start], sums[end] - sums[start]), start);
            let candidates = (stage - 1..end).map(value);
            candidates.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or((f64::INFINITY, 0))
        };
        let (next, stage_starts): (Vec<f64>, Vec<usize>) = (0..=units).map(best).unzip();
        values = next;
        starts.push(stage_starts);
    }
    let mut ends = vec![units];
    ends.extend(starts[1..].iter().rev().scan(units, |end, stage_starts| {
        *end = stage_starts[*end];
        Some(*end)
    }));
    ends.reverse();
    (values[units], ends)
}

fn add(sum: &mut f64, cost: &f64) -> Option<f64> {
    *sum += cost;
    Some(*sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Numbers of units per stage.
    fn sizes(split: Split, layers: usize, stages: usize) -> Vec<usize> {
        let ranges = split.divide(layers, stages).unwrap();
        assert!(ranges.iter().flat_map(Clone::clone).eq(0..layers + 2), "{ranges:?}");
        ranges.iter().map(Range::len).collect()
    }

    #[test]
    fn embedding_and_head_belong_to_first_and_last_stage() {
        assert_eq!(sizes(Split::Even, 8, 4), [3, 2, 2, 3]);
        assert_eq!(sizes(Split::Even, 10, 4), [3, 3, 2, 4]);
        assert_eq!(sizes(Split::Even, 3, 1), [5]);
        assert_eq!(sizes(Split::LayersPerStage(2.0), 8, 4), [3, 2, 2, 3]);
        assert_eq!(sizes(Split::LayersPerStage(2.5), 10, 4), [4, 2, 3, 3]);
        assert_eq!(sizes(Split::LayersPerStage(3.0), 8, 3), [4, 3, 3]);
        assert_eq!(sizes(Split::LayersPerStage(2.2), 57, 26)[24..], [2, 3]);
        assert_eq!(sizes(Split::Ends(vec![0, 3, 4, 4]), 4, 4), [1, 3, 1, 1]);
        assert_eq!(sizes(Split::ByCost(vec![1.0; 10]), 8, 4), [2, 2, 3, 3]);
        assert_eq!(sizes(Split::ByCost(vec![5.0, 1.0, 1.0, 1.0, 1.0, 4.0]), 4, 3), [1, 4, 1]);
    }

    #[test]
    fn impossible_pipeline_splits_name_their_numbers() {
        let refuse = |split: Split, layers, stages, words: &str| {
            let error = split.divide(layers, stages).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        };
        refuse(Split::Even, 3, 4, "3 layers cannot be divided into 4");
        refuse(Split::Even, 3, 0, "0 pipeline stages");
        refuse(Split::LayersPerStage(2.0), 8, 3, "from 2.67 and at most 3.50");
        refuse(Split::LayersPerStage(0.5), 2, 4, "at least 1");
        refuse(Split::LayersPerStage(f64::NAN), 2, 1, "layers_per_stage = NaN");
        refuse(Split::Ends(vec![2, 4]), 4, 3, "2 ends of 3");
        refuse(Split::Ends(vec![2, 2, 4]), 4, 3, "stage 1 holds no layer");
        refuse(Split::Ends(vec![3, 2, 4]), 4, 3, "stage 1 holds no layer");
        refuse(Split::Ends(vec![2, 3]), 4, 2, "after 3 layers: there are 4");
        refuse(Split::ByCost(vec![1.0; 4]), 4, 2, "have 6 costs from 0: 4 are given");
        refuse(Split::ByCost(vec![-1.0; 6]), 4, 2, "costs from 0");
        refuse(Split::ByCost(vec![1.0; 4]), 2, 5, "4 units make no 5");
    }

    /// Least largest stage over all divisions.
    fn brute_force(costs: &[f64], stages: usize) -> f64 {
        match stages {
            1 => costs.iter().sum(),
            _ => {
                let with_first =
                    |end: usize| costs[..end].iter().sum::<f64>().max(brute_force(&costs[end..], stages - 1));
                (1..=costs.len() + 1 - stages).map(with_first).fold(f64::INFINITY, f64::min)
            }
        }
    }

    proptest! {
        #[test]
        fn largest_stage_is_as_small_as_any(costs in prop::collection::vec(0u32..20, 2..10), stages in 1usize..6) {
            prop_assume!(stages <= costs.len());
            // Whole numbers: sums are exact in any order.
            let costs: Vec<f64> = costs.into_iter().map(f64::from).collect();
            let ranges = Split::ByCost(costs.clone()).divide(costs.len() - 2, stages).unwrap();
            prop_assert!(ranges.len() == stages && ranges.iter().flat_map(Clone::clone).eq(0..costs.len()));
            let cost = |range: &Range<usize>| costs[range.clone()].iter().sum::<f64>();
            let largest = ranges.iter().map(cost).fold(0.0, f64::max);
            prop_assert_eq!(largest, brute_force(&costs, stages));
        }
    }
}
