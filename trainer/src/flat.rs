//! Flat memory: parameters packed in buckets that one collective moves.

mod countdown;
mod layout;
mod numbers;
mod store;

pub use countdown::Countdown;
pub use layout::{Bucket, BucketId, ByRows, GRAIN, Layout, Packing, Piece};
pub use numbers::{Dtype, Numbers, View};
pub use store::Store;

#[cfg(test)]
mod tests;
