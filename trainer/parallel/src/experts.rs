//! Mixtures of experts: several feed-forward parts in place of one, of which each token uses a few.
//!
//! | part | file |
//! |---|---|
//! | the module, with shared experts | `mixture` |
//! | choice of a token's experts, and its gradient | `router`, with `scores` |
//! | losses that balance loads | `balance` |
//! | tokens beyond an expert's capacity | `capacity` |
//! | exchange of rows between the ranks of tokens and of experts | `dispatch` |
//! | division of experts between ranks | `expert_parallel` |
//! | products of the rows of each expert | `grouped` |
//! | settings, the section `experts` of a configuration | `settings` |
//!
//! Each rank of an expert parallel group has its own tokens and some of the experts. Rows are
//! sorted by expert and sent to its rank by `all_to_all_v`, in order of their tokens. Results
//! return the same way. Nothing is padded. Equal scores choose the expert with the lower number,
//! and a token adds up its experts in order of their scores, so results are reproducible.
//!
//! With tensor parallelism, each rank has a part of the features of every expert of its group. A
//! mixture begins with [`CopyToRegion`](crate::tensor_parallel::CopyToRegion) and ends with
//! [`ReduceFromRegion`](crate::tensor_parallel::ReduceFromRegion). All ranks choose the same
//! experts, and each has a partial gradient of the router.
//!
//! | source | for |
//! |---|---|
//! | Shazeer et al., "Outrageously large neural networks", ICLR 2017 | mixtures |
//! | Lepikhin et al., "GShard", ICLR 2021 | capacity |
//! | Fedus, Zoph, Shazeer, "Switch Transformers", JMLR 2022 | balance loss |
//! | Zoph et al., "ST-MoE", 2022 | loss of log-sums |
//! | Dai et al., "DeepSeekMoE", 2024 | fine-grained and shared experts |
//! | Wang et al., "Auxiliary-loss-free load balancing", 2024 | biases |

mod balance;
mod capacity;
mod dispatch;
mod expert_parallel;
mod grouped;
mod mixture;
mod router;
mod scores;
mod settings;
#[cfg(test)]
mod tests;

pub use expert_parallel::ExpertParallel;
pub use grouped::ExpertShape;
pub use mixture::MixtureOfExperts;
pub use settings::{ExpertBalance, Experts, RouterScore};

#[doc(hidden)]
pub use dispatch::fuzz;

use std::ops::Range;

/// Returns the range of each of several adjacent groups of rows, from their numbers.
fn row_ranges(counts: &[usize]) -> Vec<Range<usize>> {
    let mut end = 0;
    let range = |&count: &usize| {
        let start = end;
        end += count;
        start..end
    };
    counts.iter().map(range).collect()
}
