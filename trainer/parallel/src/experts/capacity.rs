//! Choices beyond the capacity of an expert.

use super::Experts;
use crate::context_parallel::ContextParallel;
use unisono::Communicator;
use unisono_nn::error::{Error, Result};
use unisono_nn::pass::Pass;

/// Returns true for each choice beyond the capacity of its expert; an empty list without a
/// capacity.
///
/// Capacity counts per sequence (a group of GShard), so it does not depend on the mesh or on
/// micro-batches. First choices of all tokens come before second ones, and earlier positions before
/// later ones. Ranks that share sequences exchange their choices.
pub(super) fn excess(pass: &Pass<'_>, experts: &Experts, chosen: &[u32]) -> Result<Vec<bool>> {
    let shared = ContextParallel::ranks_of(pass);
    let length = pass.sequence() * shared.map_or(1, Communicator::size);
    let Some(capacity) = capacity(experts, length) else { return Ok(Vec::new()) };
    let per_chunk = pass.sequence() * experts.per_token;
    let (rank, choices) = match shared {
        Some(ranks) => {
            let mut choices = vec![0; chosen.len() * ranks.size()];
            pass.waits().time("choices of experts", || ranks.all_gather(chosen, &mut choices))?;
            check_choices(&choices, chosen.len(), experts.count)?;
            (ranks.rank(), choices)
        }
        None => (0, chosen.to_vec()),
    };
    let rows = rows_by_position(pass, length);
    let mut dropped = vec![false; chosen.len()];
    for sequence in (0..chosen.len()).step_by(per_chunk) {
        let mut taken = vec![0; experts.count];
        for choice in 0..experts.per_token {
            for &(owner, row) in &rows {
                let index = sequence + row * experts.per_token + choice;
                let count = &mut taken[choices[owner * chosen.len() + index] as usize];
                *count += 1;
                // All ranks of a sequence count all of its choices in the same order, so that they
                // agree without a message about the result.
                if owner == rank {
                    dropped[index] = *count > capacity;
                }
            }
        }
    }
    Ok(dropped)
}

/// Refuses choices of experts that do not exist. All ranks have the same choices, and the same
/// error.
pub(super) fn check_choices(choices: &[u32], of_rank: usize, experts: usize) -> Result<()> {
    let Some(index) = choices.iter().position(|&expert| expert as usize >= experts) else { return Ok(()) };
    let (rank, token, expert) = (index / of_rank, index % of_rank, choices[index]);
    Err(Error::invalid(format!(
        "rank {rank} of the sequence group sent expert {expert} as its choice {token}, and there are {experts} \
         experts: check that all ranks run the same build and that the network is sound"
    )))
}

/// Returns the number of tokens of a sequence that each expert takes; `None` for all.
pub(super) fn capacity(experts: &Experts, length: usize) -> Option<usize> {
    let equal = (experts.per_token * length) as f64 / experts.count as f64;
    (experts.capacity_factor > 0.0).then(|| (experts.capacity_factor * equal).ceil() as usize)
}

/// Returns the rank and row of each position of a sequence.
fn rows_by_position(pass: &Pass<'_>, length: usize) -> Vec<(usize, usize)> {
    let mut rows = vec![(0, 0); length];
    let chunk = ContextParallel::chunk(pass);
    for owner in 0..length / pass.sequence() {
        for (row, position) in chunk.positions_of(owner, pass.sequence()).enumerate() {
            rows[position] = (owner, row);
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_of_peers_are_experts_that_exist() {
        check_choices(&[0, 3, 2, 1], 2, 4).unwrap();
        let error = check_choices(&[0, 3, 2, 4], 2, 4).unwrap_err().to_string();
        assert!(error.contains("rank 1 of the sequence group sent expert 4 as its choice 1"), "{error}");
    }
}
