//! Sections of the configuration, and the default of each key.
//!
//! Three sections are types of the crate that uses them: `mesh` is
//! [`Degrees`](unisono_parallel::mesh::Degrees), `experts` is [`Experts`], and `schedule` is
//! [`LrSchedule`](unisono_parallel::optimizer::LrSchedule).

mod model;
mod strategy;

pub use model::{FeedForward, Model, Norm, Positions, RopeScalingKind};
pub use strategy::Strategy;

use crate::data::{LastBatch, text};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use unisono::Communicator;
use unisono_nn::parameter::{Dtype, ParamGroup};
use unisono_nn::pass::Pass;
use unisono_parallel::context_parallel::{ContextParallel, KvTransfer, Placement};
pub use unisono_parallel::experts::{ExpertBalance, Experts, RouterScore};

/// Device of the computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceKind {
    /// The CPU.
    Cpu,
    /// NVIDIA GPUs, one per rank as long as there are enough.
    #[serde(alias = "gpu")]
    Cuda,
    /// The software GPU, which is slow and serves tests.
    Software,
}

/// Kind of training data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DataKind {
    /// Bytes of text files.
    Text,
    /// File of tokens.
    Tokens,
}

/// Settings of the data and its batches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Data {
    /// Kind of data.
    pub kind: DataKind,
    /// Path of a file, or of a folder with text files.
    pub path: String,
    /// Extensions of the text files to read.
    pub extensions: Vec<String>,
    /// Fraction of the text for validation.
    pub validation: f64,
    /// Token file for validation; none if empty.
    pub validation_path: String,
    /// File `tokenizer.json`, in Hugging Face's format, that made the tokens. It decodes generated
    /// text; none if empty.
    pub tokenizer: String,
    /// Token of the tokenizer after each document, at which generated text ends. If empty, the
    /// files beside `tokenizer.json` name it.
    pub end_of_text: String,
    /// Vocabulary size of token files; text has 257 tokens.
    pub vocabulary: u32,
    /// Shuffles the samples of each epoch.
    pub shuffle: bool,
    /// Treatment of samples that do not fill a batch.
    pub last_batch: LastBatch,
    /// Number of samples per optimizer step, over all ranks.
    pub global_batch: usize,
    /// Number of samples that a rank computes at once.
    pub micro_batch: usize,
    /// Number of threads per rank that read the batches of coming steps. 0 reads each batch in its
    /// step.
    pub workers: usize,
    /// Number of micro-batches that each unit computes before the next unit starts. Must divide the
    /// number of micro-batches per rank. 1 is depth first.
    pub breadth_first: usize,
    /// Number of parts of each sequence that pass one after the other. Each needs the activations
    /// of its own tokens only, besides the keys and values of all.
    pub micro_sequences: usize,
}

impl Data {
    /// Returns the number of different tokens.
    pub fn vocabulary_size(&self) -> usize {
        match self.kind {
            DataKind::Text => text::VOCAB_SIZE as usize,
            DataKind::Tokens => self.vocabulary as usize,
        }
    }
}

impl Default for Data {
    fn default() -> Self {
        Self {
            kind: DataKind::Text,
            path: ".".to_owned(),
            extensions: ["md", "rs", "txt"].map(str::to_owned).to_vec(),
            validation: 0.1,
            validation_path: String::new(),
            tokenizer: String::new(),
            end_of_text: String::new(),
            vocabulary: crate::data::text::VOCAB_SIZE,
            shuffle: true,
            last_batch: LastBatch::Drop,
            global_batch: 8,
            micro_batch: 2,
            workers: 0,
            breadth_first: 1,
            micro_sequences: 1,
        }
    }
}

/// Division of layers over pipeline stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum StageSplit {
    /// The same number of layers per stage, as far as possible.
    Even,
    /// The same amount of computation per stage, as far as possible, with that of the head.
    Cost,
}

/// Sharing of sequences between ranks: see `mesh.sequence_data`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Context {
    /// Positions of each rank.
    pub placement: Placement,
    /// Way to the keys and values of other ranks.
    pub kv_transfer: KvTransfer,
    /// Number of neighbors that exchange positions for heads, if `kv_transfer` is `ring`. Keys and
    /// values go round groups of this size. Must divide `mesh.sequence_data`.
    pub ulysses_ranks: usize,
}

impl Default for Context {
    fn default() -> Self {
        Self { placement: Placement::default(), kv_transfer: KvTransfer::default(), ulysses_ranks: 1 }
    }
}

impl Context {
    /// Sets the ranks that share the sequences of a pass, and the way in which they do.
    pub(crate) fn share_sequences(self, pass: &mut Pass<'_>, ranks: Option<&Communicator>) {
        let Some(ranks) = ranks else { return };
        let shared = ContextParallel::new(ranks).with_placement(self.placement);
        shared.with_transfer(self.kv_transfer, self.ulysses_ranks).share(pass);
    }
}

/// Settings of a pipeline of several stages: see `mesh.pipeline`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Pipeline {
    /// Order of forward and backward passes: `naive`, `gpipe`, `1f1b`, `interleaved`,
    /// `breadth-first`, `zb-h1` or `zb-v`.
    pub schedule: String,
    /// Number of stages per rank. 0 is the usual number of the schedule.
    pub chunks: usize,
    /// Division of layers over stages.
    pub split: StageSplit,
    /// Number of layers per stage, also a fraction such as 2.5. 0 divides as `split` says.
    pub layers_per_stage: f64,
    /// Number of layers before the end of each stage. Empty divides as the other keys say.
    pub stage_ends: Vec<usize>,
}

impl Default for Pipeline {
    fn default() -> Self {
        Self {
            schedule: "1f1b".to_owned(),
            chunks: 0,
            split: StageSplit::Even,
            layers_per_stage: 0.0,
            stage_ends: Vec::new(),
        }
    }
}

/// Optimizer algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OptimizerKind {
    /// Adam with decoupled weight decay. A weight decay of 0 makes it Adam.
    Adamw,
    /// Orthogonalized momentum for matrices, and AdamW for other parameters.
    Muon,
    /// Gradient descent with momentum.
    Sgd,
}

/// Settings of the optimizer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Optimizer {
    /// Algorithm.
    pub kind: OptimizerKind,
    /// Peak learning rate of the schedule.
    pub lr: f64,
    /// Decay rate of the first moment, for AdamW.
    pub beta1: f64,
    /// Decay rate of the second moment, for AdamW.
    pub beta2: f64,
    /// Constant added to the root of the second moment.
    pub epsilon: f64,
    /// Decay rate of the momentum, for Muon and SGD.
    pub momentum: f64,
    /// Weight decay, multiplied by the learning rate in each step.
    pub weight_decay: f64,
    /// Maximum gradient norm for clipping; 0 disables clipping.
    pub max_grad_norm: f64,
    /// Type in which moments are kept between steps. `bf16` halves their memory, and needs a
    /// `beta2` of at most 0.99.
    pub moment_dtype: Dtype,
    /// Parameters with a learning rate and weight decay of their own.
    pub groups: Vec<ParamGroup>,
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
            moment_dtype: Dtype::F32,
            groups: Vec::new(),
        }
    }
}

/// Settings of checkpoints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Checkpoint {
    /// Folder of the checkpoints.
    pub folder: String,
    /// Number of steps between checkpoints. 0 saves none between the first and the last step.
    pub every: u64,
    /// Saves the last step of the run, also if `every` is 0.
    pub last: bool,
    /// Writes checkpoints by a thread while training goes on. Needs memory for a copy of the state.
    #[serde(rename = "async")]
    pub asynchronous: bool,
    /// Number of checkpoints to keep.
    pub keep: usize,
    /// Resumes from the last checkpoint in the folder.
    pub resume: bool,
    /// Keys or sections that may differ from a resumed checkpoint although they change the meaning
    /// of the run, such as `optimizer.lr`.
    pub allow_changes: Vec<String>,
}

impl Default for Checkpoint {
    fn default() -> Self {
        Self {
            folder: "checkpoints".to_owned(),
            every: 0,
            last: true,
            asynchronous: false,
            keep: 2,
            resume: false,
            allow_changes: Vec::new(),
        }
    }
}

/// Settings of reports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Log {
    /// Number of steps between progress lines.
    pub every: u64,
    /// File for step records, one line of JSON each; none if empty. A new run appends to it. A
    /// resumed run drops the records after its checkpoint.
    pub file: String,
    /// Folder for event files of TensorBoard; none if empty.
    pub tensorboard: String,
    /// Number of steps between validations; 0 disables validation.
    pub validate_every: u64,
    /// Number of batches per validation.
    pub validation_batches: u64,
    /// Number of steps between comparisons of weights that ranks should have in common: those of
    /// data ranks, those that tensor parallel ranks do not divide, and those of a tied embedding; 0
    /// disables them.
    pub check_replicas_every: u64,
    /// File for an SVG plot of the run; none if empty.
    pub plot: String,
    /// File for a trace of the first steps, for Perfetto or chrome://tracing; none if empty.
    pub trace: String,
    /// Number of steps in the trace.
    pub trace_steps: u64,
}

impl Default for Log {
    fn default() -> Self {
        Self {
            every: 10,
            file: String::new(),
            tensorboard: String::new(),
            validate_every: 100,
            validation_batches: 4,
            check_replicas_every: 100,
            plot: String::new(),
            trace: String::new(),
            trace_steps: 3,
        }
    }
}

/// Settings of the text generated at the end of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Sample {
    /// Start of the text. If empty, the first words of the training text.
    pub prompt: String,
    /// Number of tokens to generate; 0 disables generation.
    pub tokens: usize,
    /// Sampling temperature; 0 always chooses the most probable token.
    pub temperature: f64,
    /// Number of most probable tokens to choose from; 0 allows all.
    pub top_k: usize,
    /// Chooses from the most probable tokens whose probabilities first add up to this number; 1
    /// allows all.
    pub top_p: f64,
    /// Divides the positive logits of tokens that the text has by this number, and multiplies the
    /// negative ones by it; 1 changes none.
    pub repetition_penalty: f64,
}

impl Default for Sample {
    fn default() -> Self {
        Self {
            prompt: String::new(),
            tokens: 240,
            temperature: 0.7,
            top_k: 0,
            top_p: 1.0,
            repetition_penalty: 1.0,
        }
    }
}
