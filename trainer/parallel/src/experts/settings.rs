//! Settings of mixtures of experts.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Score of an expert for a token, from the router's logits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RouterScore {
    /// Probabilities over all experts, as in Switch and Mixtral.
    #[default]
    Softmax,
    /// Independent scores from 0 to 1, as in DeepSeek-V3.
    Sigmoid,
}

/// Balancing of the load of experts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ExpertBalance {
    /// No balancing.
    None,
    /// Adds `balance_loss` times a loss of each sequence, which is least for equal loads.
    #[default]
    Loss,
    /// Adds a bias to the score of each expert when experts are chosen, and moves it by `bias_rate`
    /// after each step. There is no additional loss.
    Bias,
}

/// Settings of mixtures of experts, which replace the feed-forward part of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Experts {
    /// Number of routed experts per block. 0 makes all blocks dense.
    pub count: usize,
    /// Number of experts that each token uses.
    pub per_token: usize,
    /// Hidden features of each expert. 0 is the number of a dense block, divided by `per_token` and
    /// rounded up to a multiple of 8.
    pub width: usize,
    /// Number of shared experts: experts of this width that every token uses besides the routed
    /// ones.
    pub shared: usize,
    /// Number of first blocks that stay dense.
    pub first_dense: usize,
    /// Score of an expert for a token.
    pub score: RouterScore,
    /// Divides the weights of a token's experts by their sum.
    pub normalize: bool,
    /// Factor of the output of routed experts.
    pub scale: f64,
    /// Tokens of a sequence that an expert takes at most, relative to equal loads. The others skip
    /// it. 0 drops none.
    pub capacity_factor: f64,
    /// Balancing of loads.
    pub balance: ExpertBalance,
    /// Factor of the balance loss.
    pub balance_loss: f64,
    /// Change of each bias per step, for `balance = "bias"`.
    pub bias_rate: f64,
    /// Factor of the mean square of the log-sum-exp of the router's logits; 0 disables this loss.
    pub z_loss: f64,
}

impl Experts {
    /// Limit on experts per block, beyond any real model.
    pub const MAX_COUNT: usize = 1 << 16;

    /// Returns the hidden features of each expert in a model whose dense blocks have `dense`.
    pub fn hidden_width(&self, dense: usize) -> usize {
        if self.width > 0 { self.width } else { (dense / self.per_token).next_multiple_of(8) }
    }
}

impl Default for Experts {
    fn default() -> Self {
        Self {
            count: 0,
            per_token: 2,
            width: 0,
            shared: 0,
            first_dense: 0,
            score: RouterScore::Softmax,
            normalize: true,
            scale: 1.0,
            capacity_factor: 0.0,
            balance: ExpertBalance::Loss,
            balance_loss: 0.01,
            bias_rate: 0.001,
            z_loss: 0.0,
        }
    }
}
