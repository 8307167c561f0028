//! The norm of a gradient, wherever it lies.

use super::base::Base;
use crate::error::Result;
use crate::flat::Ranks;
use crate::memory::Memory;
use crate::parallel::ExactSum;
use unisono::Sum;
use unisono::device::Buffer;
use unisono_cuda::device::compute::Compute;

/// Squares of a gradient, added up where it lies.
pub(super) enum Squares {
    /// By the host: without rounding, to the same bits whoever adds what.
    Exact(ExactSum),
    /// By a GPU, in 64 bits: a sum for each bucket, which depends in its last bits on how the gradient is divided.
    Rounded(Vec<Buffer<f64>>),
}

impl Squares {
    /// Of nothing yet, where `memory` keeps flat numbers.
    pub(super) fn new(memory: &Memory) -> Self {
        match memory.lane() {
            Some(_) => Self::Rounded(Vec::new()),
            None => Self::Exact(ExactSum::default()),
        }
    }
}

impl Base {
    /// The root of a sum of squares of which every rank has a part: of the data-parallel group, if `sharded`, and of the
    /// tensor-parallel one.
    pub(super) fn norm(&self, squares: Squares, sharded: bool) -> Result<f64> {
        match squares {
            Squares::Exact(squares) => self.exact_norm(squares, sharded),
            Squares::Rounded(parts) if parts.is_empty() => Ok(0.0),
            Squares::Rounded(parts) => {
                let lane = self.store.memory.lane().expect("on a GPU");
                let sums = gathered(lane, &parts, self.have_parts(sharded))?;
                // What went wrong before it comes to light here, at the latest.
                self.check()?;
                Ok(sums.into_iter().sum::<f64>().sqrt())
            }
        }
    }

    fn exact_norm(&self, mut squares: ExactSum, sharded: bool) -> Result<f64> {
        for ranks in self.have_parts(sharded) {
            ranks.host().all_reduce(squares.digits_mut(), Sum)?;
        }
        Ok(squares.value().sqrt())
    }

    /// The groups over which squares are summed.
    fn have_parts(&self, sharded: bool) -> impl Iterator<Item = &Ranks> {
        let data = self.group.iter().filter(move |_| sharded).map(|group| &group.ranks);
        data.chain(&self.tensor)
    }
}

/// The sums of all buckets, over all groups of which each rank has a part; waits for them.
fn gathered<'a>(
    lane: &Compute,
    parts: &[Buffer<f64>],
    groups: impl Iterator<Item = &'a Ranks>,
) -> Result<Vec<f64>> {
    let mut all = lane.stream().room(parts.len())?;
    for (at, part) in parts.iter().enumerate() {
        lane.copy(all.view_mut(at..=at), part.view(..))?;
    }
    for ranks in groups {
        ranks.on_gpus()?.all_reduce(lane.stream(), &mut all, Sum)?;
    }
    Ok(all.to_vec(lane.stream())?)
}
