//! Text generation, token by token.

use super::Gpt;
use crate::error::{Error, Result};
use crate::models::Sampling;
use crate::nn::KvCache;
use crate::pass::Pass;
use crate::tensor::Tensor;

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
        pass.expect_host("a text")?;
        if prompt.is_empty() {
            return Err(Error::invalid("an empty prompt"));
        }
        let end = pass.no_grad(|pass| self.continue_with(pass, prompt, count, sampling, each));
        pass.set_kv_cache(None);
        end
    }

    fn continue_with(
        &self,
        pass: &mut Pass<'_>,
        prompt: &[u32],
        count: usize,
        sampling: Sampling,
        each: &mut dyn FnMut(u32) -> Result<bool>,
    ) -> Result<Vec<u32>> {
        let (context, mut tokens) = (self.config.context, prompt.to_vec());
        // Number of tokens whose keys and values are not in the cache.
        let mut pending = tokens.len().min(context);
        pass.set_kv_cache(Some(KvCache::new(context)));
        for _ in 0..count {
            if pass.kv_cache().is_none_or(|cache| cache.room() < pending) {
                pass.set_kv_cache(Some(KvCache::new(context)));
                pending = context.div_ceil(2).min(tokens.len());
            }
            let logits = self.next_logits(pass, &tokens[tokens.len() - pending..])?;
            let token = sampling.pick(&logits.data()[..self.config.vocabulary], tokens.len() as u64);
            tokens.push(token);
            pending = 1;
            if !each(token)? {
                break;
            }
        }
        Ok(tokens.split_off(prompt.len()))
    }

    /// Computes the logits of the token after `tokens`, which follow those in the cache.
    fn next_logits(&self, pass: &mut Pass<'_>, tokens: &[u32]) -> Result<Tensor> {
        let rows = tokens.len();
        let features = self.features(pass, tokens.to_vec(), rows)?;
        pass.kv_cache_mut().expect("set by the caller").advance(rows);
        let last = Tensor::from_slice(pass.memory(), 1, features.columns(), features.row(rows - 1));
        let logits = self.head.logits(pass, last)?;
        self.tensor_parallel.gather_row(pass, logits)
    }
}
