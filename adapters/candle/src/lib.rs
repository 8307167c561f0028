#![doc = include_str!("../README.md")]

mod bucket;
mod collective;
mod data_parallel;
mod error;
mod params;
mod sharded_adamw;

pub use data_parallel::DataParallel;
pub use error::{Error, Result};
pub use params::Params;
pub use sharded_adamw::ShardedAdamW;
