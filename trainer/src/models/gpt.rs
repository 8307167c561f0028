//! GPT-2 and its modern variants.
mod embeddings;
mod generation;
mod lm_head;

use super::{FeedForward, GptConfig, Positions};
use crate::models::gpt::embeddings::Embeddings;
use crate::models::gpt::lm_head::LmHead;
use unisono_nn::batch::{Batch, TokenBatch};
use unisono_nn::error::{Error, Result};
use unisono_nn::model::{self, Block, Flow, Model, ModuleBlock};
use unisono_nn::modules::{
    ActivationCheckpoint, Attention, Dropout, Gelu, Module, QueryKeyNorm, Residual, RotaryEmbedding,
    Sequential, SwiGlu, chunk_count,
};
use unisono_nn::parameter::{Registry, UnitId};
use unisono_nn::pass::Pass;
use unisono_nn::step_plan::Direction;
use unisono_nn::tensor::Tensor;
use unisono_parallel::experts::{ExpertParallel, ExpertShape, Experts, MixtureOfExperts};
use unisono_parallel::tensor_parallel::TensorParallel;

/// Decoder of blocks x + attention(norm x), x + feed-forward(norm x) (Radford et al., "Language
/// models are unsupervised multitask learners", 2019).
///
/// Parameters have the names of Hugging Face's GPT-2: `wte`, `wpe` for learned positions,
/// `h.N.{ln_1, attn.{c_attn, c_proj}, ln_2, mlp.{c_fc, c_proj}}`, `ln_f`, and `lm_head` if it is
/// not tied. Norms of queries and keys are `attn.{q_norm, k_norm}`. Mixtures of experts have
/// `mlp.{router, shared, experts.M}` instead. Linear weights are outputs × inputs, the transpose of
/// GPT-2's files. The units are the embedding, each block, and the head.
pub struct Gpt {
    config: GptConfig,
    embedding: Embeddings,
    blocks: Vec<ModuleBlock>,
    head: LmHead,
    tensor_parallel: TensorParallel,
}

impl Gpt {
    /// Creates a model with parameters in `registry`, sharded as `split` says. Its plan is usually
    /// [`GptConfig::parallel_plan`].
    ///
    /// # Errors
    /// Fails for invalid dimensions, and for plan rules without a match.
    ///
    /// # Panics
    /// Panics if `registry` has units: those of a model begin with unit 0.
    pub fn new(registry: &mut Registry, config: GptConfig, split: TensorParallel) -> Result<Self> {
        Self::with_experts(registry, config, split, ExpertParallel::default())
    }

    /// Creates a model as [`Gpt::new`] does, whose experts are shared as `parallel` says.
    ///
    /// # Errors
    /// Fails as [`Gpt::new`] does, and if ranks cannot share the experts equally.
    ///
    /// # Panics
    /// Panics as [`Gpt::new`] does.
    pub fn with_experts(
        registry: &mut Registry,
        config: GptConfig,
        split: TensorParallel,
        parallel: ExpertParallel,
    ) -> Result<Self> {
        parallel.check(config.experts.as_ref())?;
        config.check(split.size())?;
        config.check_window()?;
        assert!(registry.inventory_so_far().units.is_empty(), "units of a model begin with unit 0");
        let embedding = Embeddings::new(registry, &config, &split);
        let blocks = (0..config.layers).map(|number| {
            let name = format!("h.{number}");
            ModuleBlock(
                registry.unit(&name, |registry| block(registry, &config, number, &split, &parallel)).1,
            )
        });
        let blocks = blocks.collect();
        let head = LmHead::new(registry, &config, embedding.table(), &split);
        // All layers exist only now, and a rule of the plan without a match can be told only then.
        split.check()?;
        Ok(Self { config, embedding, blocks, head, tensor_parallel: split })
    }

    /// Replaces the module of a block by one around it.
    #[cfg(test)]
    pub(crate) fn wrap_block(
        &mut self,
        number: usize,
        wrap: impl FnOnce(Box<dyn Module>) -> Box<dyn Module>,
    ) {
        let ModuleBlock(module) = self.blocks.remove(number);
        self.blocks.insert(number, ModuleBlock(wrap(module)));
    }

    /// Returns the dimensions and options.
    pub fn config(&self) -> &GptConfig {
        &self.config
    }

    /// Computes the logits of every token: (tokens, classes of this rank). Saves nothing for
    /// backward.
    ///
    /// # Errors
    /// Fails for unknown tokens. Returns the error of a failed collective.
    pub fn logits(&self, pass: &mut Pass<'_>, tokens: &[u32], sequence: usize) -> Result<Tensor> {
        pass.expect_host("logits for whoever asks")?;
        pass.no_grad(|pass| {
            let features = self.features(pass, tokens.to_vec(), sequence)?;
            self.head.logits(pass, features)
        })
    }

    /// Computes the input of the head.
    fn features(&self, pass: &mut Pass<'_>, inputs: Vec<u32>, sequence: usize) -> Result<Tensor> {
        let batch = TokenBatch { inputs, targets: Vec::new(), sequence };
        model::set_batches(self, pass, vec![Batch::new(batch)])?;
        let forward = |flow, unit| {
            pass.unit(UnitId(unit), Direction::Forward, |pass| self.block(UnitId(unit)).forward(pass, flow))
        };
        (0..=self.blocks.len()).try_fold(Flow::Start, forward).map(Flow::into_features)
    }

    /// Returns true if a sequence, or its chunks together, fit in the context and its padding.
    fn sequence_fits(&self, pass: &Pass<'_>, sequence: usize) -> bool {
        let chunks = chunk_count(pass) * pass.micro_sequences();
        (1..=self.config.padded_context()).contains(&(chunks * sequence))
    }
}

impl Model for Gpt {
    fn block_count(&self) -> usize {
        self.blocks.len() + 2
    }

    fn block(&self, unit: UnitId) -> &dyn Block {
        match unit.0 {
            0 => &self.embedding,
            number if number <= self.blocks.len() => &self.blocks[number - 1],
            _ => &self.head,
        }
    }

    fn feature_shape(&self, pass: &Pass<'_>, micro_batch: usize) -> Result<[usize; 2]> {
        let rows = pass.batch_of(micro_batch).get::<TokenBatch>()?.inputs.len();
        Ok([self.tensor_parallel.row_range(pass, rows)?.1, self.config.width])
    }

    fn check(&self, pass: &Pass<'_>, batch: &Batch) -> Result<()> {
        let &TokenBatch { ref inputs, sequence, .. } = batch.get()?;
        if self.sequence_fits(pass, sequence) && inputs.len().is_multiple_of(sequence) {
            return Ok(());
        }
        let (count, context) = (inputs.len(), self.config.context);
        let wanted = format!("for a language model of {context} tokens of context");
        Err(Error::invalid(format!("{count} tokens in sequences of {sequence} {wanted}")))
    }
}

fn block(
    registry: &mut Registry,
    config: &GptConfig,
    number: usize,
    split: &TensorParallel,
    parallel: &ExpertParallel,
) -> Box<dyn Module> {
    let attention = Residual(Sequential(vec![
        split.sequence_parallel_region(registry, |registry| config.make_norm(registry, "ln_1")),
        registry.scope("attn", |registry| attention(registry, config, split)),
    ]));
    let feed_forward = Residual(Sequential(vec![
        split.sequence_parallel_region(registry, |registry| config.make_norm(registry, "ln_2")),
        registry.scope("mlp", |registry| match config.experts_of(number) {
            Some(experts) => mixture(registry, config, experts, split, parallel),
            None => feed_forward(registry, config, split),
        }),
    ]));
    let block = Sequential(vec![Box::new(attention), Box::new(feed_forward)]);
    if config.activation_checkpointing { Box::new(ActivationCheckpoint(block)) } else { Box::new(block) }
}

fn attention(registry: &mut Registry, config: &GptConfig, split: &TensorParallel) -> Box<dyn Module> {
    let (width, queries, head_dim) = (config.width, config.query_width(), config.head_dim());
    let columns = queries + 2 * config.kv_width();
    let [heads, kv_heads] = [config.heads, config.kv_heads].map(|heads| heads.div_ceil(split.size()));
    let qkv_projection = registry.scope("c_attn", |r| split.linear(r, width, columns, config.qkv_init()));
    let norm = config.qk_norm.then(|| {
        let epsilon = config.norm_epsilon as f32;
        // All heads have one gain, and each tensor parallel rank adds the gradient of its heads.
        registry.with_partial_grads(split.size() > 1, |registry| {
            QueryKeyNorm::new(registry, [heads, kv_heads], head_dim, epsilon)
        })
    });
    let output_projection =
        registry.scope("c_proj", |r| split.linear(r, queries, width, config.residual_init()));
    let dropout = Dropout::new(registry, "resid_dropout", config.dropout, split.rng_stream());
    let mut modules = vec![qkv_projection];
    if let Some(norm) = norm {
        modules.push(Box::new(norm));
    }
    if let Positions::Rotary(rope) = config.positions {
        modules.push(Box::new(RotaryEmbedding::new(rope, heads + kv_heads, head_dim)));
    }
    let site = registry.rng_site("attention");
    modules.push(Box::new(Attention::new(heads, head_dim).with_kv_heads(kv_heads).with_site(site)));
    modules.push(output_projection);
    modules.push(Box::new(dropout));
    Box::new(Sequential(modules))
}

fn feed_forward(registry: &mut Registry, config: &GptConfig, split: &TensorParallel) -> Box<dyn Module> {
    let (width, hidden) = (config.width, config.ffn_width());
    let (columns, activation): (_, Box<dyn Module>) = match config.feed_forward {
        FeedForward::Gelu => (hidden, Box::new(Gelu::Tanh)),
        FeedForward::SwiGlu => (2 * hidden, Box::new(SwiGlu)),
    };
    let up_projection = registry.scope("c_fc", |r| split.linear(r, width, columns, config.init()));
    let down_projection =
        registry.scope("c_proj", |r| split.linear(r, hidden, width, config.residual_init()));
    let dropout = Dropout::new(registry, "dropout", config.dropout, split.rng_stream());
    Box::new(Sequential(vec![up_projection, activation, down_projection, Box::new(dropout)]))
}

fn mixture(
    registry: &mut Registry,
    config: &GptConfig,
    experts: &Experts,
    split: &TensorParallel,
    parallel: &ExpertParallel,
) -> Box<dyn Module> {
    let shape = ExpertShape {
        features: config.width,
        hidden: experts.hidden_width(config.ffn_width()),
        is_gated: config.feed_forward == FeedForward::SwiGlu,
        init: [config.init(), config.residual_init()],
    };
    let mixture = MixtureOfExperts::new(registry, experts, shape, split, parallel);
    let dropout = Dropout::new(registry, "dropout", config.dropout, split.rng_stream());
    let (start, end) = (split.copy_to_region(), split.reduce_from_region());
    Box::new(Sequential(vec![Box::new(start), Box::new(mixture), Box::new(end), Box::new(dropout)]))
}
