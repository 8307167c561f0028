//! GPT-2 and its modern variants.

use super::{Batch, FeedForward, GptConfig, Model, Sampling};
use crate::error::{Error, Result};
use crate::nn::{
    CausalAttention, Checkpoint, CrossEntropy, Draw, Dropout, Embedding, Gelu, Layer, Linear, Module,
    Residual, Sequential, SwiGlu, vector,
};
use crate::parameter::{Init, ParameterId, Registry, UnitId};
use crate::pass::Pass;
use crate::strategy::Way;
use crate::tensor::Tensor;

/// A decoder of blocks x + attention(norm x), x + feed-forward(norm x) (Radford and others: Language models are unsupervised
/// multitask learners, 2019).
///
/// Parameters have the names of Hugging Face's GPT-2: `wte`, `wpe`, `h.N.{ln_1, attn.{c_attn, c_proj}, ln_2, mlp.{c_fc, c_proj}}`,
/// `ln_f`, and `lm_head` if it is not tied. Weights of maps are outputs × inputs: the transpose of what is in its files.
/// Units: the embedding, each block, the head.
pub struct Gpt {
    config: GptConfig,
    embedding: Front,
    blocks: Vec<Layer<Box<dyn Module>>>,
    head: Layer<Sequential>,
    loss: CrossEntropy,
}

impl Gpt {
    /// A model of parameters that are added to `registry`.
    ///
    /// # Errors
    /// For extents that do not go together.
    pub fn new(registry: &mut Registry, config: GptConfig) -> Result<Self> {
        config.check()?;
        let embedding = Front::new(registry, &config);
        let blocks = (0..config.layers).map(|number| {
            let name = format!("h.{number}");
            Layer::new(registry, &name, &name, |registry| block(registry, &config))
        });
        let blocks = blocks.collect();
        let tokens = embedding.tokens.weight();
        let head = Layer::new(registry, "head", "", |registry| head(registry, &config, tokens));
        let loss = CrossEntropy { ignore: config.ignore };
        Ok(Self { config, embedding, blocks, head, loss })
    }

    /// Extents and options.
    pub fn config(&self) -> &GptConfig {
        &self.config
    }

    /// The `count` tokens that follow `prompt`.
    ///
    /// # Errors
    /// For an empty prompt or unknown tokens in it, and of collectives.
    pub fn generate(
        &self,
        pass: &mut Pass<'_>,
        prompt: &[u32],
        count: usize,
        sampling: Sampling,
    ) -> Result<Vec<u32>> {
        if prompt.is_empty() {
            return Err(Error::illegal("an empty prompt"));
        }
        let mut tokens = prompt.to_vec();
        for _ in 0..count {
            let seen = &tokens[tokens.len().saturating_sub(self.config.context)..];
            let logits = pass.infer(|pass| self.next(pass, seen))?;
            tokens.push(sampling.pick(logits.data(), tokens.len() as u64));
        }
        Ok(tokens.split_off(prompt.len()))
    }

    /// The logits of what follows `seen`.
    fn next(&self, pass: &mut Pass<'_>, seen: &[u32]) -> Result<Tensor> {
        // Nothing looks ahead, so what is behind does not matter; and storage of few sizes is used again.
        const GRAIN: usize = 64;
        let length = seen.len().next_multiple_of(GRAIN).min(self.config.context);
        let mut tokens = seen.to_vec();
        tokens.resize(length, 0);
        let features = self.features(pass, tokens, length)?;
        let last = Tensor::from(pass.memory(), 1, features.columns(), features.row(seen.len() - 1));
        self.head.forward(pass, last)
    }

    /// What the head gets.
    fn features(&self, pass: &mut Pass<'_>, tokens: Vec<u32>, sequence: usize) -> Result<Tensor> {
        pass.set_sequence(sequence);
        let embedded = self.embedding.forward(pass, tokens)?;
        self.blocks.iter().try_fold(embedded, |features, block| block.forward(pass, features))
    }
}

impl Model for Gpt {
    fn forward(&self, pass: &mut Pass<'_>, batch: &Batch<'_>) -> Result<f32> {
        let context = self.config.context;
        match *batch {
            Batch::Tokens { inputs, targets, sequence }
                if (1..=context).contains(&sequence) && inputs.len().is_multiple_of(sequence) =>
            {
                let features = self.features(pass, inputs.to_vec(), sequence)?;
                let logits = self.head.forward(pass, features)?;
                self.loss.forward(pass, logits, targets)
            }
            _ => batch.mismatch(&format!("a language model of {context} tokens of context")),
        }
    }

    fn backward(&self, pass: &mut Pass<'_>, scale: f32) -> Result<()> {
        let gradient = self.loss.backward(pass, scale);
        let gradient = self.head.backward(pass, gradient)?;
        let mut blocks = self.blocks.iter().rev();
        let gradient = blocks.try_fold(gradient, |gradient, block| block.backward(pass, gradient))?;
        self.embedding.backward(pass, gradient)
    }
}

/// Tokens and their positions.
struct Front {
    unit: UnitId,
    tokens: Embedding,
    positions: Embedding,
    dropout: Dropout,
}

impl Front {
    fn new(registry: &mut Registry, config: &GptConfig) -> Self {
        let (width, init) = (config.width, Init::Normal(0.02));
        let (unit, (tokens, positions, dropout)) = registry.unit_at("embedding", "", |registry| {
            let tokens = registry.scope("wte", |r| Embedding::new(r, config.vocabulary, width, init));
            let positions = registry.scope("wpe", |r| Embedding::new(r, config.context, width, init));
            (tokens, positions, Dropout::new(registry, "drop", config.dropout, Draw::Shared))
        });
        Self { unit, tokens, positions, dropout }
    }

    fn forward(&self, pass: &mut Pass<'_>, tokens: Vec<u32>) -> Result<Tensor> {
        pass.unit(self.unit, Way::Forward, |pass| {
            let sequence = pass.sequence();
            let positions = (0..tokens.len()).map(|row| (row % sequence) as u32).collect();
            let mut features = self.tokens.forward(pass, tokens)?;
            let places = self.positions.forward(pass, positions)?;
            vector::add(features.data_mut(), places.data());
            self.dropout.forward(pass, features)
        })
    }

    fn backward(&self, pass: &mut Pass<'_>, gradient: Tensor) -> Result<()> {
        pass.unit(self.unit, Way::Backward, |pass| {
            let gradient = self.dropout.backward(pass, gradient)?;
            self.positions.backward(pass, &gradient)?;
            self.tokens.backward(pass, &gradient)
        })
    }
}

fn block(registry: &mut Registry, config: &GptConfig) -> Box<dyn Module> {
    let attention = Residual(Sequential(vec![
        config.make_norm(registry, "ln_1"),
        registry.scope("attn", |registry| attention(registry, config)),
    ]));
    let feed_forward = Residual(Sequential(vec![
        config.make_norm(registry, "ln_2"),
        registry.scope("mlp", |registry| feed_forward(registry, config)),
    ]));
    let block = Sequential(vec![Box::new(attention), Box::new(feed_forward)]);
    if config.checkpoint { Box::new(Checkpoint(block)) } else { Box::new(block) }
}

fn attention(registry: &mut Registry, config: &GptConfig) -> Box<dyn Module> {
    let width = config.width;
    let into = registry.scope("c_attn", |r| Linear::new(r, width, 3 * width, config.start()));
    let out = registry.scope("c_proj", |r| Linear::new(r, width, width, config.last_start()));
    let heads = CausalAttention::new(config.heads, config.head_dim());
    let dropout = Dropout::new(registry, "resid_dropout", config.dropout, Draw::Shared);
    Box::new(Sequential(vec![Box::new(into), Box::new(heads), Box::new(out), Box::new(dropout)]))
}

fn feed_forward(registry: &mut Registry, config: &GptConfig) -> Box<dyn Module> {
    let (width, hidden) = (config.width, config.hidden());
    let (columns, activation): (_, Box<dyn Module>) = match config.feed_forward {
        FeedForward::Gelu => (hidden, Box::new(Gelu::Tanh)),
        FeedForward::SwiGlu => (2 * hidden, Box::new(SwiGlu)),
    };
    let into = registry.scope("c_fc", |r| Linear::new(r, width, columns, config.start()));
    let out = registry.scope("c_proj", |r| Linear::new(r, hidden, width, config.last_start()));
    let dropout = Dropout::new(registry, "dropout", config.dropout, Draw::Shared);
    Box::new(Sequential(vec![Box::new(into), activation, Box::new(out), Box::new(dropout)]))
}

fn head(registry: &mut Registry, config: &GptConfig, tokens: ParameterId) -> Sequential {
    let norm = config.make_norm(registry, "ln_f");
    let (width, vocabulary) = (config.width, config.vocabulary);
    let map = registry.scope("lm_head", |registry| match config.tied {
        true => Linear::tied(registry, tokens, width, vocabulary),
        false => Linear::new(registry, width, vocabulary, config.start().without_bias()),
    });
    Sequential(vec![norm, Box::new(map)])
}
