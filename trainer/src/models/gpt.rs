//! GPT-2 and its modern variants.

use super::{Batch, FeedForward, GptConfig, Model, Sampling};
use crate::error::{Error, Result};
use crate::nn::{
    CausalAttention, Checkpoint, CrossEntropy, Dropout, Embedding, Gelu, Layer, Linear, Module, Residual,
    Sequential, SwiGlu, vector,
};
use crate::parameter::{Init, ParameterId, Registry, UnitId};
use crate::pass::Pass;
use crate::split::{Leave, Split, SplitCrossEntropy};
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
    loss: Loss,
    split: Split,
}

impl Gpt {
    /// A model of parameters that are added to `registry`, cut as `split` says; its plan is usually
    /// [`GptConfig::plan`].
    ///
    /// # Errors
    /// For extents that do not go together, and lines of the plan that name nothing.
    pub fn new(registry: &mut Registry, config: GptConfig, split: Split) -> Result<Self> {
        config.check(split.parts())?;
        let embedding = Front::new(registry, &config, &split);
        let blocks = (0..config.layers).map(|number| {
            let name = format!("h.{number}");
            Layer::new(registry, &name, &name, |registry| block(registry, &config, &split))
        });
        let blocks = blocks.collect();
        let tokens = embedding.tokens.weight();
        let head = Layer::new(registry, "head", "", |registry| head(registry, &config, tokens, &split));
        split.check(registry.so_far())?;
        let loss = Loss::new(&config, &split);
        Ok(Self { config, embedding, blocks, head, loss, split })
    }

    /// Extents and options.
    pub fn config(&self) -> &GptConfig {
        &self.config
    }

    /// What the head says of every token: (tokens, classes that this rank has). Nothing is kept for a way back.
    ///
    /// # Errors
    /// For unknown tokens, and of collectives.
    pub fn logits(&self, pass: &mut Pass<'_>, tokens: &[u32], sequence: usize) -> Result<Tensor> {
        pass.infer(|pass| {
            let features = self.features(pass, tokens.to_vec(), sequence)?;
            self.head.forward(pass, features)
        })
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
            let classes = &logits.data()[..self.config.vocabulary];
            tokens.push(sampling.pick(classes, tokens.len() as u64));
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
        let logits = self.head.forward(pass, last)?;
        self.split.whole_row(pass, logits)
    }

    /// What the head gets.
    fn features(&self, pass: &mut Pass<'_>, tokens: Vec<u32>, sequence: usize) -> Result<Tensor> {
        pass.set_sequence(sequence);
        let embedded = self.embedding.forward(pass, tokens, &self.split)?;
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
    leave: Leave,
    positions: Embedding,
    dropout: Dropout,
}

impl Front {
    fn new(registry: &mut Registry, config: &GptConfig, split: &Split) -> Self {
        let (width, init) = (config.width, Init::Normal(0.02));
        let (unit, (tokens, positions, dropout)) = registry.unit_at("embedding", "", |registry| {
            let (count, cut) = (config.vocabulary, split.cut(0, config.vocabulary, 1, 1));
            let tokens = registry.scope("wte", |r| Embedding::cut(r, count, width, init, cut));
            let positions = split
                .on_rows(registry, |r| r.scope("wpe", |r| Embedding::new(r, config.context, width, init)));
            (tokens, positions, Dropout::new(registry, "drop", config.dropout, split.draw()))
        });
        Self { unit, tokens, leave: split.leave(), positions, dropout }
    }

    fn forward(&self, pass: &mut Pass<'_>, tokens: Vec<u32>, split: &Split) -> Result<Tensor> {
        let ((first, rows), sequence) = (split.rows(pass, tokens.len())?, pass.sequence());
        pass.unit(self.unit, Way::Forward, |pass| {
            let positions = (first..first + rows).map(|row| (row % sequence) as u32).collect();
            let summands = self.tokens.forward(pass, tokens)?;
            let mut features = self.leave.forward(pass, summands)?;
            let places = self.positions.forward(pass, positions)?;
            vector::add(features.data_mut(), places.data());
            self.dropout.forward(pass, features)
        })
    }

    fn backward(&self, pass: &mut Pass<'_>, gradient: Tensor) -> Result<()> {
        pass.unit(self.unit, Way::Backward, |pass| {
            let gradient = self.dropout.backward(pass, gradient)?;
            self.positions.backward(pass, &gradient)?;
            let gradient = self.leave.backward(pass, gradient)?;
            self.tokens.backward(pass, &gradient)
        })
    }
}

/// The loss of logits that are whole, or cut.
enum Loss {
    Whole(CrossEntropy),
    Split(SplitCrossEntropy),
}

impl Loss {
    fn new(config: &GptConfig, split: &Split) -> Self {
        match (split.group(), split.cut(0, config.vocabulary, 1, 1)) {
            (Some(group), Some(cut)) => {
                Self::Split(SplitCrossEntropy::new(group.clone(), cut, config.ignore))
            }
            _ => Self::Whole(CrossEntropy { ignore: config.ignore }),
        }
    }

    fn forward(&self, pass: &mut Pass<'_>, logits: Tensor, targets: &[u32]) -> Result<f32> {
        match self {
            Self::Whole(loss) => loss.forward(pass, logits, targets),
            Self::Split(loss) => loss.forward(pass, logits, targets),
        }
    }

    fn backward(&self, pass: &mut Pass<'_>, factor: f32) -> Tensor {
        match self {
            Self::Whole(loss) => loss.backward(pass, factor),
            Self::Split(loss) => loss.backward(pass, factor),
        }
    }
}

fn block(registry: &mut Registry, config: &GptConfig, split: &Split) -> Box<dyn Module> {
    let attention = Residual(Sequential(vec![
        split.on_rows(registry, |registry| config.make_norm(registry, "ln_1")),
        registry.scope("attn", |registry| attention(registry, config, split)),
    ]));
    let feed_forward = Residual(Sequential(vec![
        split.on_rows(registry, |registry| config.make_norm(registry, "ln_2")),
        registry.scope("mlp", |registry| feed_forward(registry, config, split)),
    ]));
    let block = Sequential(vec![Box::new(attention), Box::new(feed_forward)]);
    if config.checkpoint { Box::new(Checkpoint(block)) } else { Box::new(block) }
}

fn attention(registry: &mut Registry, config: &GptConfig, split: &Split) -> Box<dyn Module> {
    let width = config.width;
    let into = registry.scope("c_attn", |r| split.linear(r, width, 3 * width, config.start()));
    let out = registry.scope("c_proj", |r| split.linear(r, width, width, config.last_start()));
    let heads = CausalAttention::new(config.heads.div_ceil(split.parts()), config.head_dim());
    let dropout = Dropout::new(registry, "resid_dropout", config.dropout, split.draw());
    Box::new(Sequential(vec![into, Box::new(heads), out, Box::new(dropout)]))
}

fn feed_forward(registry: &mut Registry, config: &GptConfig, split: &Split) -> Box<dyn Module> {
    let (width, hidden) = (config.width, config.hidden());
    let (columns, activation): (_, Box<dyn Module>) = match config.feed_forward {
        FeedForward::Gelu => (hidden, Box::new(Gelu::Tanh)),
        FeedForward::SwiGlu => (2 * hidden, Box::new(SwiGlu)),
    };
    let into = registry.scope("c_fc", |r| split.linear(r, width, columns, config.start()));
    let out = registry.scope("c_proj", |r| split.linear(r, hidden, width, config.last_start()));
    let dropout = Dropout::new(registry, "dropout", config.dropout, split.draw());
    Box::new(Sequential(vec![into, activation, out, Box::new(dropout)]))
}

fn head(registry: &mut Registry, config: &GptConfig, tokens: ParameterId, split: &Split) -> Sequential {
    let norm = split.on_rows(registry, |registry| config.make_norm(registry, "ln_f"));
    let (width, vocabulary) = (config.width, config.vocabulary);
    let map: Box<dyn Module> = registry.scope("lm_head", |registry| match config.tied {
        true => {
            let local = split.cut(0, vocabulary, 1, 1).map_or(vocabulary, |cut| cut.local());
            let map = Linear::tied(registry, tokens, width, local);
            Box::new(Sequential(vec![Box::new(split.enter()), Box::new(map)]))
        }
        false => split.linear(registry, width, vocabulary, config.start().without_bias()),
    });
    Sequential(vec![norm, map])
}
