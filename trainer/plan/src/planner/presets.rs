//! Published models, by name.
//!
//! Sources: Touvron et al., "Llama 2", 2023; Dubey et al., "The Llama 3 herd of models", 2024;
//! Jiang et al., "Mistral 7B", 2023, and "Mixtral of experts", 2024; Yang et al., "Qwen2.5
//! technical report", 2024, and "Qwen3 technical report", 2025; Abdin et al., "Phi-3 technical
//! report", 2024.

use crate::cost::{BytesPerParam, ModelShape};
use crate::{GptShape, SequenceSharing};
use unisono_parallel::experts::Experts;

/// Dimensions of a published model.
struct Preset {
    name: &'static str,
    vocabulary: usize,
    context: usize,
    width: usize,
    heads: usize,
    /// Features per head, if they are not width / heads.
    head_dim: Option<usize>,
    kv_heads: usize,
    layers: usize,
    /// Queries, keys and values have a bias.
    qkv_bias: bool,
    /// Heads of queries and keys are normalized.
    qk_norm: bool,
    /// Hidden features of the feed-forward part, or of each expert.
    hidden: usize,
    /// Number of experts, and of those that a token uses.
    experts: Option<[usize; 2]>,
}

const fn llama(name: &'static str, [width, heads, kv_heads, layers, hidden]: [usize; 5]) -> Preset {
    Preset {
        name,
        vocabulary: 32_000,
        context: 4096,
        width,
        heads,
        head_dim: None,
        kv_heads,
        layers,
        qkv_bias: false,
        qk_norm: false,
        hidden,
        experts: None,
    }
}

const fn llama3(name: &'static str, dimensions: [usize; 5]) -> Preset {
    Preset { vocabulary: 128_256, context: 8192, ..llama(name, dimensions) }
}

const fn qwen2(preset: Preset) -> Preset {
    Preset { vocabulary: 152_064, context: 32_768, qkv_bias: true, ..preset }
}

const fn qwen3(preset: Preset) -> Preset {
    Preset { vocabulary: 151_936, context: 32_768, qk_norm: true, ..preset }
}

const PRESETS: [Preset; 12] = [
    llama("llama2-7b", [4096, 32, 32, 32, 11_008]),
    llama("llama2-13b", [5120, 40, 40, 40, 13_824]),
    llama("llama2-70b", [8192, 64, 8, 80, 28_672]),
    llama3("llama3-8b", [4096, 32, 8, 32, 14_336]),
    llama3("llama3-70b", [8192, 64, 8, 80, 28_672]),
    llama3("llama3-405b", [16_384, 128, 8, 126, 53_248]),
    Preset { context: 8192, ..llama("mistral-7b", [4096, 32, 8, 32, 14_336]) },
    qwen2(llama("qwen2.5-7b", [3584, 28, 4, 28, 18_944])),
    qwen3(llama("qwen3-8b", [4096, 32, 8, 36, 12_288])),
    Preset { head_dim: Some(128), ..qwen3(llama("qwen3-32b", [5120, 64, 8, 64, 25_600])) },
    Preset { vocabulary: 32_064, ..llama("phi3-mini", [3072, 32, 32, 32, 8192]) },
    Preset { experts: Some([8, 2]), ..llama("mixtral-8x7b", [4096, 32, 8, 32, 14_336]) },
];

/// Returns the names of all published models.
pub fn published_names() -> String {
    PRESETS.map(|preset| preset.name).join(", ")
}

/// Returns the published model of this name, such as `llama2-7b`, in mixed precision.
pub fn published_model(name: &str) -> Option<ModelShape> {
    PRESETS.iter().find(|preset| preset.name == name).map(Preset::shape)
}

impl Preset {
    fn shape(&self) -> ModelShape {
        let &Self { vocabulary, context, width, heads, head_dim, kv_heads, layers, hidden, .. } = self;
        let &Self { qkv_bias, qk_norm, .. } = self;
        let gpt = GptShape::llama(vocabulary, context, width, heads, layers);
        let gpt = GptShape { head_dim, kv_heads, ffn_width: Some(hidden), qkv_bias, qk_norm, ..gpt };
        let columns = gpt.query_width() + 2 * gpt.kv_width();
        let biases = if qkv_bias { columns } else { 0 };
        let norms = if qk_norm { 2 * gpt.head_dim() } else { 0 };
        let attention = width * (columns + gpt.query_width()) + biases + norms;
        let feed_forward = 3 * width * hidden;
        let [experts, per_token] = self.experts.unwrap_or([1, 1]);
        let router = if experts > 1 { experts * width } else { 0 };
        let layer = attention + router + 2 * width;
        let others = layers * layer + 2 * vocabulary * width + width;
        let of_experts = if experts > 1 { layers * experts * feed_forward } else { 0 };
        let dense = if experts > 1 { others } else { others + layers * feed_forward };
        let settings = Experts { count: experts, per_token, width: hidden, ..Experts::default() };
        ModelShape {
            parameters: (dense + of_experts) as f64,
            active: (dense + of_experts / experts * per_token) as f64,
            expert_parameters: of_experts as f64,
            gpt: GptShape { experts: (experts > 1).then_some(settings), ..gpt },
            sharing: SequenceSharing::default(),
            shard_ranks: 0,
            activation_bytes: 2,
            bytes: BytesPerParam::mixed(4.0, false),
            units: Vec::new(),
        }
    }
}
