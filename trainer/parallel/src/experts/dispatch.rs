//! Exchange of rows between the ranks of tokens and the ranks of experts.
//!
//! A choice is one of a token's experts. Choice `token * per_token + k` is the k-th best.

use super::router::Routing;
use super::row_ranges;
use std::ops::Range;
use unisono::{Communicator, Work};
use unisono_nn::error::{Error, Result};
use unisono_nn::pass::Pass;
use unisono_nn::tensor::Tensor;

/// Rows that each choice sends to the rank of its expert and gets back.
pub(super) struct Dispatch {
    group: Option<Communicator>,
    per_token: usize,
    /// Row of each choice among the rows that this rank sends; `None` for a choice that was
    /// dropped. The rows are sorted by expert, then by token.
    places: Vec<Option<u32>>,
    /// Number of rows to each rank.
    sent: Vec<usize>,
    /// Number of rows from each rank to each of this rank's experts, by rank and then by expert.
    received: Vec<usize>,
    /// Number of this rank's experts.
    own_experts: usize,
}

/// Rows on their way to other ranks.
pub(super) enum Transfer {
    /// All experts are here.
    Local(Tensor),
    /// Rows of other ranks arrive in the background.
    Started(Work<Tensor>),
}

impl Transfer {
    fn wait(self, pass: &Pass<'_>, name: &'static str) -> Result<Tensor> {
        match self {
            Self::Local(rows) => Ok(rows),
            Self::Started(work) => Ok(pass.waits().time(name, || work.wait())?),
        }
    }
}

/// Refuses more rows than `choices`, the number of choices of this rank, since memory is made for
/// them: all ranks have equally many tokens. The others have not seen the numbers, so the error
/// ends the group on all ranks.
fn check_announced_rows(
    group: &Communicator,
    received: &[u64],
    own_experts: usize,
    choices: usize,
) -> Result<()> {
    let Some((rank, rows)) = impossible_rows(received, own_experts, choices) else { return Ok(()) };
    let what = format!(
        "rank {rank} of the expert group announced {rows:?} rows for the experts of rank {}, and a rank has \
         {choices} choices of experts: check that all ranks have the same build, settings and length of \
         batches, and that the network is sound",
        group.rank()
    );
    group.abort(&what);
    Err(Error::invalid(what))
}

/// Returns a rank that announced more rows than it has choices, with its rows for each expert.
fn impossible_rows(received: &[u64], own_experts: usize, choices: usize) -> Option<(usize, &[u64])> {
    received.chunks_exact(own_experts).enumerate().find(|(_, rows)| {
        // A corrupt message can hold any numbers, whose sum may not fit.
        let sum = rows.iter().try_fold(0u64, |sum, &rows| sum.checked_add(rows));
        sum.is_none_or(|sum| sum > choices as u64)
    })
}

/// Reads bytes as the numbers of rows and the choices of experts that other ranks send.
pub fn fuzz(bytes: &[u8]) {
    const CHOICES: usize = 1 << 20;
    let received: Vec<u64> = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    for own_experts in [1, 3] {
        if impossible_rows(&received, own_experts, CHOICES).is_none() {
            let complete = received.len() / own_experts * own_experts;
            let received = received[..complete].iter().map(|&rows| rows as usize).collect();
            let (places, sent) = (Vec::new(), Vec::new());
            let dispatch = Dispatch { group: None, per_token: 1, places, sent, received, own_experts };
            let (of_experts, of_ranks) = (dispatch.counts(), dispatch.rows_of_ranks());
            assert_eq!(of_experts.iter().sum::<usize>(), of_ranks.iter().sum::<usize>());
            assert!(of_ranks.iter().all(|&rows| rows <= CHOICES));
        }
    }
    let choices: Vec<u32> = bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
    let are_known = choices.iter().all(|&expert| expert < 4);
    assert_eq!(super::capacity::check_choices(&choices, choices.len().max(1), 4).is_ok(), are_known);
}

impl Dispatch {
    /// Sorts the choices by expert. Exchanges the numbers of rows between the ranks of `group`,
    /// which divide `experts` experts.
    pub(super) fn new(
        pass: &Pass<'_>,
        group: Option<&Communicator>,
        experts: usize,
        per_token: usize,
        routing: &Routing,
    ) -> Result<Self> {
        let ranks = group.map_or(1, Communicator::size);
        let mut counts = vec![0; experts];
        let kept = |choice: &usize| !routing.dropped.get(*choice).copied().unwrap_or(false);
        let choices = || (0..routing.chosen.len()).filter(kept);
        choices().for_each(|choice| counts[routing.chosen[choice] as usize] += 1);
        // Sorted by expert, the rows for one rank are adjacent, as `all_to_all_v` needs them.
        let mut rows = row_ranges(&counts);
        let counts: Vec<u64> = counts.into_iter().map(|count| count as u64).collect();
        let mut places = vec![None; routing.chosen.len()];
        for choice in choices() {
            places[choice] = rows[routing.chosen[choice] as usize].next().map(|row| row as u32);
        }
        let mut received = counts.clone();
        let own_experts = experts / ranks;
        if let Some(group) = group {
            // Routing decides how many rows travel, so a rank cannot know what it will receive.
            pass.waits().time("numbers of tokens of experts", || group.all_to_all(&counts, &mut received))?;
            check_announced_rows(group, &received, own_experts, routing.chosen.len())?;
        }
        let sent = counts.chunks_exact(own_experts).map(|of_rank| of_rank.iter().sum::<u64>() as usize);
        Ok(Self {
            group: group.cloned(),
            per_token,
            places,
            sent: sent.collect(),
            received: received.into_iter().map(|count| count as usize).collect(),
            own_experts,
        })
    }

    /// Returns the number of rows of each of this rank's experts.
    pub(super) fn counts(&self) -> Vec<usize> {
        let rows_of = |expert| self.received.iter().skip(expert).step_by(self.own_experts).sum();
        (0..self.own_experts).map(rows_of).collect()
    }

    /// Starts sending the rows of tokens to their experts, times the weight of each choice if there
    /// are weights.
    pub(super) fn send(&self, pass: &Pass<'_>, rows: &Tensor, weights: Option<&Tensor>) -> Transfer {
        let mut packed = pass.tensor(self.sent.iter().sum(), rows.columns());
        for (choice, place) in self.places.iter().enumerate() {
            let Some(place) = *place else { continue };
            let (source, target) = (rows.row(choice / self.per_token), packed.row_mut(place as usize));
            match weights.map(|weights| weights.data()[choice]) {
                Some(weight) => {
                    target.iter_mut().zip(source).for_each(|(product, value)| *product = weight * value)
                }
                None => target.copy_from_slice(source),
            }
        }
        self.exchange(pass, packed, &self.sent, &self.rows_of_ranks())
    }

    /// Returns the rows of this rank's experts, sorted by expert, then by rank and token.
    pub(super) fn receive(&self, pass: &Pass<'_>, transfer: Transfer) -> Result<Tensor> {
        let arrived = transfer.wait(pass, "rows for experts")?;
        Ok(self.regroup(pass, arrived, |by_rank, by_expert| (by_rank, by_expert)))
    }

    /// Starts sending the results of this rank's experts back to the ranks of their tokens.
    pub(super) fn send_back(&self, pass: &Pass<'_>, results: Tensor) -> Transfer {
        let packed = self.regroup(pass, results, |by_rank, by_expert| (by_expert, by_rank));
        self.exchange(pass, packed, &self.rows_of_ranks(), &self.sent)
    }

    /// Returns the results for the rows that this rank has sent, in their order.
    pub(super) fn receive_back(&self, pass: &Pass<'_>, transfer: Transfer) -> Result<Tensor> {
        transfer.wait(pass, "results of experts")
    }

    /// Adds the results of each token's choices to its row, times their weights if these are given.
    pub(super) fn combine(&self, results: &Tensor, weights: Option<&Tensor>, output: &mut Tensor) {
        for (choice, place) in self.places.iter().enumerate() {
            let Some(place) = *place else { continue };
            // A token adds up its results in the order of its choices, whichever ranks computed
            // them. So the bits of a sum do not depend on the division of experts.
            let weight = weights.map_or(1.0, |weights| weights.data()[choice]);
            let row = output.row_mut(choice / self.per_token).iter_mut();
            row.zip(results.row(place as usize)).for_each(|(sum, value)| *sum += weight * value);
        }
    }

    /// Returns the product of each choice's result and the gradient of its token: the gradient of
    /// its weight. It is 0 for a choice that was dropped.
    pub(super) fn weight_gradients(&self, pass: &Pass<'_>, gradient: &Tensor, results: &Tensor) -> Tensor {
        let mut found = Tensor::zeros(pass.memory(), gradient.rows(), self.per_token);
        for (choice, place) in self.places.iter().enumerate() {
            let Some(place) = *place else { continue };
            let pairs = gradient.row(choice / self.per_token).iter().zip(results.row(place as usize));
            found.data_mut()[choice] = pairs.map(|(slope, result)| slope * result).sum();
        }
        found
    }

    /// Returns the rows that this rank receives from each rank.
    fn rows_of_ranks(&self) -> Vec<usize> {
        self.received.chunks_exact(self.own_experts).map(|of_rank| of_rank.iter().sum()).collect()
    }

    fn exchange(&self, pass: &Pass<'_>, rows: Tensor, sent: &[usize], received: &[usize]) -> Transfer {
        let Some(group) = &self.group else { return Transfer::Local(rows) };
        let columns = rows.columns();
        let elements = |counts: &[usize]| counts.iter().map(|count| count * columns).collect::<Vec<_>>();
        let (sent, counts) = (elements(sent), elements(received));
        // The tensor is made before the thread starts, because the cached vectors of activations
        // belong to the thread that computes.
        let mut arrived = pass.tensor(received.iter().sum(), columns);
        Transfer::Started(group.spawn(move |group| {
            group.all_to_all_v(rows.data(), &sent, arrived.data_mut(), &counts)?;
            Ok(arrived)
        }))
    }

    /// Moves rows from the order by rank and then expert to the order by expert and then rank, or
    /// back. `way` gets a range of rows in both orders, and returns the source and the target.
    fn regroup(
        &self,
        pass: &Pass<'_>,
        rows: Tensor,
        way: impl Fn(Range<usize>, Range<usize>) -> (Range<usize>, Range<usize>),
    ) -> Tensor {
        let ranks = self.received.len() / self.own_experts;
        // With one rank or one expert, both orders are the same.
        if ranks == 1 || self.own_experts == 1 {
            return rows;
        }
        let mut sorted = pass.tensor(rows.rows(), rows.columns());
        let sources = row_ranges(&self.received);
        let by_expert = (0..self.own_experts).flat_map(|expert| (0..ranks).map(move |rank| (expert, rank)));
        let elements = |range: Range<usize>| range.start * rows.columns()..range.end * rows.columns();
        let mut end = 0;
        for (expert, rank) in by_expert {
            let range = sources[rank * self.own_experts + expert].clone();
            let (source, target) = way(range.clone(), end..end + range.len());
            sorted.data_mut()[elements(target)].copy_from_slice(&rows.data()[elements(source)]);
            end += range.len();
        }
        sorted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use unisono_nn::testing::run_ranks;

    #[test]
    fn announced_rows_that_cannot_be_end_all_ranks() {
        for rows in [[1, u64::MAX], [2, 10]] {
            let errors = run_ranks(2, |group| match group.rank() {
                0 => {
                    check_announced_rows(&group, &[5, 6, 11, 0], 2, 11).unwrap();
                    let received = [5, 6, rows[0], rows[1]];
                    check_announced_rows(&group, &received, 2, 11).unwrap_err().to_string()
                }
                _ => group.barrier().unwrap_err().to_string(),
            });
            let text = format!("rank 1 of the expert group announced {rows:?} rows");
            assert!(errors.iter().all(|error| error.contains(&text)), "{errors:?}");
        }
    }
}
