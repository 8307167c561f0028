//! The sections of a configuration, each key with its default.

use crate::data::LastBatch;
use crate::flat::Dtype;
use crate::parallel::{Average, GradReduction, ParallelKind, ReduceFrequency, Settings, UnusedGradients};
use serde::{Deserialize, Serialize};

/// What computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceKind {
    /// The CPU.
    Cpu,
    /// NVIDIA GPUs, one for each rank as far as there are.
    Cuda,
    /// A GPU's driver in software, slow: for tests.
    Software,
}

/// Which architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModelKind {
    /// A causal transformer over tokens.
    Gpt,
    /// A multi-layer perceptron over tables.
    Mlp,
}

/// Which normalization.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Norm {
    /// To mean 0 and deviation 1.
    Layer,
    /// To root mean square 1.
    Rms,
}

/// Which transformer feed-forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FeedForward {
    /// Two matrices around a GELU.
    Gelu,
    /// Three matrices around a gated SiLU.
    Swiglu,
}

/// The model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Model {
    /// Which architecture.
    pub kind: ModelKind,
    /// Transformer blocks.
    pub layers: usize,
    /// Features of each token.
    pub width: usize,
    /// Attention heads; a divisor of the width.
    pub heads: usize,
    /// Tokens of a sequence.
    pub context: usize,
    /// Which normalization.
    pub norm: Norm,
    /// Which feed-forward.
    pub feed_forward: FeedForward,
    /// Whether the head uses the weights of the embedding.
    pub tie_word_embeddings: bool,
    /// Share of activations dropped in training.
    pub dropout: f64,
    /// Whether blocks compute their activations again in backward rather than keep them.
    pub activation_checkpointing: bool,
    /// Parts of the rows of which the head and the loss are computed one after the other: from two on, there are never the logits
    /// of all rows, and they are computed twice.
    pub cross_entropy_splits: usize,
    /// Widths of a perceptron's hidden layers.
    pub hidden_sizes: Vec<usize>,
    /// What is not trained: paths of parameters or of what has some, as `wte` or `h.*.attn`; `*` is one part of a path.
    pub freeze: Vec<String>,
}

impl Default for Model {
    fn default() -> Self {
        Self {
            kind: ModelKind::Gpt,
            layers: 2,
            width: 128,
            heads: 4,
            context: 128,
            norm: Norm::Layer,
            feed_forward: FeedForward::Gelu,
            tie_word_embeddings: true,
            dropout: 0.0,
            activation_checkpointing: false,
            cross_entropy_splits: 1,
            hidden_sizes: vec![64, 64],
            freeze: Vec::new(),
        }
    }
}

/// What the data is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DataKind {
    /// The bytes of text files.
    Text,
    /// A file of tokens.
    Tokens,
    /// Comma-separated numbers.
    Table,
}

/// The data, and how it is divided into batches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Data {
    /// What it is.
    pub kind: DataKind,
    /// File, or folder of text files.
    pub path: String,
    /// Endings of the text files that count.
    pub extensions: Vec<String>,
    /// Share of text or rows that is for validation.
    pub validation: f64,
    /// Token file for validation; none if empty.
    pub validation_path: String,
    /// Number of different tokens in token files; text has 257.
    pub vocabulary: u32,
    /// Whether each epoch has an order of its own.
    pub shuffle: bool,
    /// What becomes of samples that do not fill a batch.
    pub last_batch: LastBatch,
    /// Samples of all ranks in a step of the optimizer.
    pub global_batch: usize,
    /// Samples that a rank computes at once.
    pub micro_batch: usize,
    /// Micro-batches that each unit of the model computes one after the other, before the next unit does; a divisor of how many a
    /// rank has. 1 is depth first.
    pub breadth_first: usize,
}

impl Default for Data {
    fn default() -> Self {
        Self {
            kind: DataKind::Text,
            path: ".".to_owned(),
            extensions: ["md", "rs", "txt"].map(str::to_owned).to_vec(),
            validation: 0.1,
            validation_path: String::new(),
            vocabulary: crate::data::text::VOCAB_SIZE,
            shuffle: true,
            last_batch: LastBatch::Drop,
            global_batch: 8,
            micro_batch: 2,
            breadth_first: 1,
        }
    }
}

/// Which optimizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OptimizerKind {
    /// Adam with decoupled weight decay.
    Adamw,
    /// Orthogonalized momentum for matrices, AdamW for the rest.
    Muon,
    /// Gradient descent with momentum.
    Sgd,
}

/// The optimizer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Optimizer {
    /// Which.
    pub kind: OptimizerKind,
    /// Learning rate at the peak of the schedule.
    pub lr: f64,
    /// Share of the first moment that stays, for AdamW.
    pub beta1: f64,
    /// Share of the second moment that stays, for AdamW.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub epsilon: f64,
    /// Share of the momentum that stays, for Muon and gradient descent.
    pub momentum: f64,
    /// Share of the weights, times the learning rate, that each step takes away.
    pub weight_decay: f64,
    /// Longest gradient; none if 0.
    pub max_grad_norm: f64,
}

impl Default for Optimizer {
    fn default() -> Self {
        Self {
            kind: OptimizerKind::Adamw,
            lr: 2e-3,
            beta1: 0.9,
            beta2: 0.95,
            epsilon: 1e-8,
            momentum: 0.95,
            weight_decay: 0.1,
            max_grad_norm: 1.0,
        }
    }
}

/// How data ranks share work and state. PyTorch's names for the same are understood too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StrategyKind {
    /// Each gradient is reduced after backward.
    Naive,
    /// Each gradient is reduced as it appears.
    Overlapped,
    /// Buckets of gradients are reduced as they fill: PyTorch's `no-shard`.
    #[serde(alias = "no-shard")]
    Bucketed,
    /// The optimizer's state is dealt out by whole parameters.
    Zero1Parameters,
    /// The optimizer's state is cut.
    Zero1,
    /// Gradients are, too: PyTorch's `shard-grad-op`.
    #[serde(alias = "shard-grad-op")]
    Zero2,
    /// Weights are, too: PyTorch's `full-shard`.
    #[serde(alias = "full-shard")]
    Zero3,
}

impl StrategyKind {
    /// All of them, from the one that shares least to the one that shares most.
    pub const ALL: [Self; 7] = [
        Self::Naive,
        Self::Overlapped,
        Self::Bucketed,
        Self::Zero1Parameters,
        Self::Zero1,
        Self::Zero2,
        Self::Zero3,
    ];

    /// Which of the strategies that is.
    pub fn parallel_kind(self) -> ParallelKind {
        match self {
            Self::Naive | Self::Overlapped | Self::Bucketed => ParallelKind::Replicated,
            Self::Zero1Parameters => ParallelKind::Zero1Parameters,
            Self::Zero1 => ParallelKind::Zero1,
            Self::Zero2 => ParallelKind::Zero2,
            Self::Zero3 => ParallelKind::Zero3,
        }
    }

    /// Whether ranks keep only their shares of the optimizer's state.
    pub fn shards_state(self) -> bool {
        matches!(self, Self::Zero1 | Self::Zero2 | Self::Zero3)
    }

    /// Whether ranks keep only their shares of gradients.
    pub fn shards_gradients(self) -> bool {
        matches!(self, Self::Zero2 | Self::Zero3)
    }

    /// PyTorch's name for it, if it has one.
    pub fn pytorch_name(self) -> Option<&'static str> {
        match self {
            Self::Bucketed => Some("no-shard"),
            Self::Zero2 => Some("shard-grad-op"),
            Self::Zero3 => Some("full-shard"),
            _ => None,
        }
    }

    /// Its name in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Self::Naive => "naive",
            Self::Overlapped => "overlapped",
            Self::Bucketed => "bucketed",
            Self::Zero1Parameters => "zero1-parameters",
            Self::Zero1 => "zero1",
            Self::Zero2 => "zero2",
            Self::Zero3 => "zero3",
        }
    }
}

/// The strategy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Strategy {
    /// Which.
    pub kind: StrategyKind,
    /// Size of a bucket of gradients, in MiB.
    pub bucket_mb: f64,
    /// Units whose weights are gathered ahead of their use.
    pub prefetch: usize,
    /// Most gatherings under way at once.
    pub gather_limit: usize,
    /// Whether gathered weights are freed after forward and gathered again for backward.
    pub reshard_after_forward: bool,
    /// Most reductions of whole buckets under way at once, where only shares are kept.
    pub reduction_limit: usize,
    /// How often gradients are reduced, where only shares are kept.
    pub reduce_each: ReduceFrequency,
    /// Where sums become means.
    pub average: Average,
    /// What becomes of parameters that got no gradient.
    pub unused: UnusedGradients,
    /// Whether gradients of 16-bit weights are added up in 32 bits.
    pub fp32_grad_accum: bool,
    /// Folder on whose disk the optimizer's state is kept between steps, in files that no one else sees; in memory if empty.
    pub offload: String,
    /// Type in which gradients are reduced.
    pub reduce_dtype: Dtype,
    /// Type in which weights are gathered and used.
    pub param_dtype: Dtype,
    /// Whether ranks that share layers also share the rows between them: sequence parallelism.
    pub sequence_parallel: bool,
}

impl Default for Strategy {
    fn default() -> Self {
        Self {
            kind: StrategyKind::Bucketed,
            bucket_mb: 25.0,
            prefetch: 1,
            gather_limit: 2,
            reshard_after_forward: true,
            reduction_limit: 2,
            reduce_each: ReduceFrequency::Step,
            average: Average::InReduction,
            unused: UnusedGradients::Zero,
            fp32_grad_accum: false,
            offload: String::new(),
            reduce_dtype: Dtype::F32,
            param_dtype: Dtype::F32,
            sequence_parallel: false,
        }
    }
}

impl Strategy {
    /// As strategies know it, with initial weights by `seed`.
    pub fn settings(&self, seed: u64) -> Settings {
        let form = match self.kind {
            StrategyKind::Naive => GradReduction::Naive,
            StrategyKind::Overlapped => GradReduction::Overlapped,
            _ => GradReduction::Bucketed,
        };
        let gradients = if self.fp32_grad_accum { Dtype::F32 } else { self.param_dtype };
        Settings {
            seed,
            grad_reduction: form,
            bucket_bytes: (self.bucket_mb * f64::from(1 << 20)) as usize,
            wire_dtype: (self.reduce_dtype != gradients).then_some(self.reduce_dtype),
            prefetch: self.prefetch,
            max_pending_gathers: self.gather_limit,
            reshard_after_forward: self.reshard_after_forward,
            max_pending_reductions: self.reduction_limit,
            reduce_each: self.reduce_each,
            average: self.average,
            unused: self.unused,
            fp32_grad_accum: self.fp32_grad_accum,
            offload: (!self.offload.is_empty()).then(|| self.offload.clone().into()),
            ..Settings::default()
        }
    }
}

/// Checkpoints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Checkpoint {
    /// Where they are.
    pub folder: String,
    /// Steps from one to the next, and one is made after the last step; none are made if 0.
    pub every: u64,
    /// How many are kept.
    pub keep: usize,
    /// Whether to go on from the last one there.
    pub resume: bool,
}

impl Default for Checkpoint {
    fn default() -> Self {
        Self { folder: "checkpoints".to_owned(), every: 0, keep: 2, resume: false }
    }
}

/// What is told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Log {
    /// Steps from one line to the next.
    pub every: u64,
    /// Where every step is written as a line of JSON; nowhere if empty.
    pub file: String,
    /// Steps from one validation to the next; none if 0.
    pub validate_every: u64,
    /// Batches of each validation.
    pub validation_batches: u64,
    /// Steps from one comparison of all ranks' weights to the next; none if 0.
    pub check_replicas_every: u64,
    /// Where the run is drawn when it ends, as SVG; nowhere if empty.
    pub plot: String,
    /// Where the first steps are written as a trace for Perfetto or chrome://tracing; nowhere if empty.
    pub trace: String,
    /// How many steps that are.
    pub trace_steps: u64,
}

impl Default for Log {
    fn default() -> Self {
        Self {
            every: 10,
            file: String::new(),
            validate_every: 100,
            validation_batches: 4,
            check_replicas_every: 100,
            plot: String::new(),
            trace: String::new(),
            trace_steps: 3,
        }
    }
}

/// The text that a run shows at its end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sample {
    /// What it begins with.
    pub prompt: String,
    /// How many tokens follow; none are shown if 0.
    pub tokens: usize,
    /// How daring; 0 is the most probable at each place.
    pub temperature: f64,
}

impl Default for Sample {
    fn default() -> Self {
        Self { prompt: "//! ".to_owned(), tokens: 240, temperature: 0.7 }
    }
}
