//! How a model and its training are divided over ranks.
//!
//! [`data_parallel`] keeps parameters in flat [`bucket`]s and reduces their gradients, whole or in
//! shards (ZeRO stages 1 to 3). [`tensor_parallel`] and [`experts`] divide layers, [`pipeline`]
//! divides a model into stages, and a [`mesh`] says which ranks do so with each other.
#![forbid(unsafe_code)]

pub mod bucket;
pub mod data_parallel;
pub mod experts;
pub mod mesh;
pub mod optimizer;
pub mod pipeline;
pub mod tensor_parallel;
#[doc(hidden)]
pub mod testing;
