//! Text generation, token by token.

use super::Gpt;
use crate::models::Sampling;
use unisono_nn::batch::{Batch, TokenBatch};
use unisono_nn::error::{Error, Result};
use unisono_nn::model::{Flow, Model, run_forward, set_batches};
use unisono_nn::modules::KvCache;
use unisono_nn::pass::Pass;
use unisono_nn::step_plan::StepPlan;

impl Gpt {
    /// Generates up to `count` tokens after `prompt`. Calls `each` with every token; the text ends
    /// when it returns false. Keys and values are kept, so a token costs one row. When the context
    /// is full, its later half is computed anew.
    ///
    /// # Errors
    /// Fails for an empty prompt or unknown tokens. Returns the error of `each`, or of a failed
    /// collective.
    pub fn generate(
        &self,
        pass: &mut Pass<'_>,
        prompt: &[u32],
        count: usize,
        sampling: Sampling,
        each: &mut dyn FnMut(u32) -> Result<bool>,
    ) -> Result<Vec<u32>> {
        let plan = StepPlan::forward_only(self.block_count());
        let mut forward = |pass: &mut Pass<'_>| {
            let output = run_forward(self, pass, &plan)?;
            self.next_logits(pass, output)
        };
        self.generate_with(pass, prompt, count, sampling, &mut forward, each)
    }

    /// Generates tokens as [`Gpt::generate`] does. `forward` computes the batch of the pass, maybe
    /// on several ranks, and returns the result of [`Gpt::next_logits`] on all of them.
    ///
    /// # Errors
    /// Fails as [`Gpt::generate`] does, and returns the error of `forward`.
    pub fn generate_with(
        &self,
        pass: &mut Pass<'_>,
        prompt: &[u32],
        count: usize,
        sampling: Sampling,
        forward: &mut dyn FnMut(&mut Pass<'_>) -> Result<Vec<f32>>,
        each: &mut dyn FnMut(u32) -> Result<bool>,
    ) -> Result<Vec<u32>> {
        pass.expect_host("a text")?;
        if prompt.is_empty() {
            return Err(Error::invalid("an empty prompt"));
        }
        let end = pass.no_grad(|pass| {
            let (context, mut tokens) = (self.config.context, prompt.to_vec());
            // Number of tokens whose keys and values are not in the cache.
            let mut pending = tokens.len().min(context);
            pass.extensions_mut().insert(KvCache::new(context));
            for _ in 0..count {
                if pass.extensions().get::<KvCache>().is_none_or(|cache| cache.room() < pending) {
                    pass.extensions_mut().insert(KvCache::new(context));
                    // Half of the context leaves room for as many tokens before rows are computed
                    // anew again.
                    pending = context.div_ceil(2).min(tokens.len());
                }
                let inputs = tokens[tokens.len() - pending..].to_vec();
                let batch = TokenBatch { inputs, targets: Vec::new(), sequence: pending };
                set_batches(self, pass, vec![Batch::new(batch)])?;
                let mut logits = forward(pass)?;
                let cache = pass.extensions_mut().get_mut::<KvCache>();
                cache.expect("attention keeps it").advance(pending);
                sampling.penalize(&mut logits, &tokens);
                let token = sampling.pick(&logits, tokens.len() as u64);
                tokens.push(token);
                pending = 1;
                if !each(token)? {
                    break;
                }
            }
            Ok(tokens.split_off(prompt.len()))
        });
        // The cache also ends after an error, so that the pass can go on training.
        pass.extensions_mut().remove::<KvCache>();
        end
    }

    /// Returns the logits of the token after a batch without targets, from the output of the last
    /// block. Ranks with parts of the head must all call this.
    ///
    /// # Errors
    /// Returns the error of a failed collective.
    pub fn next_logits(&self, pass: &Pass<'_>, output: Flow) -> Result<Vec<f32>> {
        let logits = self.tensor_parallel.gather_row(pass, output.into_features())?;
        Ok(logits.data()[..self.config.vocabulary].to_vec())
    }
}
