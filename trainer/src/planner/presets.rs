//! Published models, by name.
//!
//! Sources: Touvron et al., "Llama 2", 2023; Dubey et al., "The Llama 3 herd of models", 2024;
//! Jiang et al., "Mixtral of experts", 2024.

use crate::config::Context;
use crate::cost::{BytesPerParam, ModelShape};
use crate::experts::Experts;
use crate::models::GptConfig;

/// Dimensions of a published model.
struct Preset {
    name: &'static str,
    vocabulary: usize,
    context: usize,
    width: usize,
    heads: usize,
    kv_heads: usize,
    layers: usize,
    /// Hidden features of the feed-forward part, or of each expert.
    hidden: usize,
    /// Number of experts, and of those that a token uses.
    experts: Option<[usize; 2]>,
}

const fn llama(name: &'static str, [width, heads, kv_heads, layers, hidden]: [usize; 5]) -> Preset {
    let (vocabulary, context, experts) = (32_000, 4096, None);
    Preset { name, vocabulary, context, width, heads, kv_heads, layers, hidden, experts }
}

const fn llama3(name: &'static str, dimensions: [usize; 5]) -> Preset {
    Preset { vocabulary: 128_256, context: 8192, ..llama(name, dimensions) }
}

const PRESETS: [Preset; 7] = [
    llama("llama2-7b", [4096, 32, 32, 32, 11_008]),
    llama("llama2-13b", [5120, 40, 40, 40, 13_824]),
    llama("llama2-70b", [8192, 64, 8, 80, 28_672]),
    llama3("llama3-8b", [4096, 32, 8, 32, 14_336]),
    llama3("llama3-70b", [8192, 64, 8, 80, 28_672]),
    llama3("llama3-405b", [16_384, 128, 8, 126, 53_248]),
    Preset { experts: Some([8, 2]), ..llama("mixtral-8x7b", [4096, 32, 8, 32, 14_336]) },
];

/// Returns the names of all presets.
pub(crate) fn names() -> String {
    PRESETS.map(|preset| preset.name).join(", ")
}

/// Returns the model of this name in mixed precision.
pub(crate) fn find(name: &str) -> Option<ModelShape> {
    PRESETS.iter().find(|preset| preset.name == name).map(Preset::shape)
}

impl Preset {
    fn shape(&self) -> ModelShape {
        let &Self { vocabulary, context, width, heads, kv_heads, layers, hidden, .. } = self;
        let gpt = GptConfig::llama(vocabulary, context, width, heads, layers);
        let gpt = GptConfig { kv_heads, ffn_width: Some(hidden), ..gpt };
        let attention = 2 * width * width + 2 * width * gpt.kv_width();
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
            gpt: GptConfig { experts: (experts > 1).then_some(settings), ..gpt },
            sharing: Context::default(),
            activation_bytes: 2,
            bytes: BytesPerParam::mixed(4.0, false),
            units: Vec::new(),
        }
    }
}
