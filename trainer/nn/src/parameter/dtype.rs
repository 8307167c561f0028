//! Element types of parameters and of the flat buffers that hold them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Element type of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Dtype {
    /// 32-bit floats.
    #[default]
    #[serde(alias = "float32", alias = "fp32")]
    F32,
    /// bfloat16: 16-bit floats with the exponent range of 32-bit floats.
    #[serde(alias = "bfloat16")]
    Bf16,
}

impl Dtype {
    /// Returns the size of an element in bytes.
    pub fn size(self) -> usize {
        match self {
            Dtype::F32 => 4,
            Dtype::Bf16 => 2,
        }
    }
}
