//! Names, order and orientation of parameters in files.

use crate::models::{GptConfig, Positions};
use std::ops::Range;
use unisono_nn::parameter::Parameter;

/// Layout of the files of a model family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Names of GPT-2, with or without the prefix `transformer.`.
    Gpt2,
    /// Names of Llama, and of the families that differ from it by a few switches.
    Llama {
        /// Features of all queries.
        queries: usize,
        /// Features of all keys.
        keys: usize,
        /// Queries, keys and values are one tensor, and so are gates and values, as in Phi-3.
        is_fused: bool,
    },
}

/// Tensor of a file, and its place in a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileTensor {
    pub(super) name: String,
    /// Shape in the file.
    pub(super) shape: Vec<usize>,
    /// Range of the elements in the whole parameter.
    pub(super) range: Range<usize>,
    /// The file has the transpose.
    pub(super) is_transposed: bool,
}

impl FileTensor {
    /// Returns the index in the tensor of the parameter's element `index`.
    pub(super) fn file_index(&self, index: usize) -> usize {
        let index = index - self.range.start;
        match self.shape[..] {
            [inputs, outputs] if self.is_transposed => index % inputs * outputs + index / inputs,
            _ => index,
        }
    }
}

impl Layout {
    /// Returns the layout for a model: with rotary positions that of its family or Llama's, and
    /// GPT-2's with learned ones.
    pub fn of(config: &GptConfig) -> Self {
        match config.positions {
            Positions::Learned => Self::Gpt2,
            Positions::Rotary(_) => {
                let is_fused = config.family.switches().is_fused;
                Self::Llama { queries: config.query_width(), keys: config.kv_width(), is_fused }
            }
        }
    }

    /// Returns the tensors of a parameter, in the order of its elements.
    pub(super) fn tensors(self, parameter: &Parameter) -> Vec<FileTensor> {
        match self {
            Self::Gpt2 => vec![gpt2_tensor(parameter)],
            Self::Llama { queries, keys, is_fused } => {
                let (module, leaf) = split_name(&parameter.name);
                let rows = parameter.global_shape()[0];
                let tensors = match module.rsplit('.').next() {
                    Some("c_attn") if is_fused => vec![("qkv_proj", rows)],
                    Some("c_attn") => vec![("q_proj", queries), ("k_proj", keys), ("v_proj", keys)],
                    Some("c_fc") if is_fused => vec![("gate_up_proj", rows)],
                    Some("c_fc") if module.contains(EXPERTS) => vec![("w1", rows / 2), ("w3", rows / 2)],
                    Some("c_fc") => vec![("gate_proj", rows / 2), ("up_proj", rows / 2)],
                    _ => vec![("", rows)],
                };
                parts(parameter, &llama_path(module), leaf, &tensors)
            }
        }
    }

    /// Returns true if files may have this tensor although no parameter has it: masks and constants
    /// of older versions, and the head that the embedding is tied to.
    pub(super) fn ignores(self, name: &str) -> bool {
        name == "lm_head.weight"
            || match self {
                Self::Gpt2 => name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias"),
                Self::Llama { .. } => name.ends_with(".rotary_emb.inv_freq"),
            }
    }

    /// Returns the name of the embedding of tokens.
    pub(super) fn embedding(self) -> &'static str {
        match self {
            Self::Gpt2 => "wte.weight",
            Self::Llama { .. } => "model.embed_tokens.weight",
        }
    }

    /// Returns the prefix of names that some files have and others do not.
    pub(super) fn optional_prefix(self) -> &'static str {
        match self {
            Self::Gpt2 => "transformer.",
            Self::Llama { .. } => "",
        }
    }
}

fn gpt2_tensor(parameter: &Parameter) -> FileTensor {
    let mut path = parameter.name.rsplit('.');
    let is_transposed =
        path.next() == Some("weight") && path.next().is_some_and(|module| module.starts_with("c_"));
    let mut shape = parameter.global_shape();
    let range = 0..shape.iter().product();
    if is_transposed {
        shape.reverse();
    }
    FileTensor { name: parameter.name.clone(), shape, range, is_transposed }
}

/// Splits a name into the path of its module and the name in it.
fn split_name(name: &str) -> (&str, &str) {
    name.rsplit_once('.').unwrap_or(("", name))
}

/// Part of the paths of experts in a model.
const EXPERTS: &str = "mlp.experts.";

/// Returns Llama's path for a module. It ends in a dot if the layout divides the module or has
/// another name for it.
fn llama_path(module: &str) -> String {
    let Some(block_path) = module.strip_prefix("h.") else {
        let path = match module {
            "wte" => "model.embed_tokens",
            "ln_f" => "model.norm",
            other => other,
        };
        return path.to_owned();
    };
    let (number, part) = block_path.split_once('.').unwrap_or((block_path, ""));
    let path = match part {
        "ln_1" => "input_layernorm",
        "attn.c_attn" => "self_attn.",
        "attn.q_norm" => "self_attn.q_norm",
        "attn.k_norm" => "self_attn.k_norm",
        "attn.c_proj" => "self_attn.o_proj",
        "ln_2" => "post_attention_layernorm",
        "mlp.c_fc" => "mlp.",
        "mlp.c_proj" => "mlp.down_proj",
        "mlp.router" => "block_sparse_moe.gate",
        other => return format!("model.layers.{number}.{}", expert_path(other)),
    };
    format!("model.layers.{number}.{path}")
}

/// Returns Mixtral's path for a module of an expert, such as `mlp.experts.3.c_proj`. Other modules
/// keep theirs.
fn expert_path(part: &str) -> String {
    match part.strip_prefix(EXPERTS).and_then(|module| module.split_once('.')) {
        Some((expert, "c_fc")) => format!("block_sparse_moe.experts.{expert}."),
        Some((expert, "c_proj")) => format!("block_sparse_moe.experts.{expert}.w2"),
        _ => part.to_owned(),
    }
}

/// Returns the tensors of a parameter whose rows are divided like this.
fn parts(parameter: &Parameter, prefix: &str, leaf: &str, rows: &[(&str, usize)]) -> Vec<FileTensor> {
    let global_shape = parameter.global_shape();
    let row: usize = global_shape[1..].iter().product();
    let mut start = 0;
    let part = |&(name, rows): &(&str, usize)| {
        let range = start..start + rows * row;
        start = range.end;
        let shape = [&[rows], &global_shape[1..]].concat();
        FileTensor { name: format!("{prefix}{name}.{leaf}"), shape, range, is_transposed: false }
    };
    rows.iter().map(part).collect()
}
