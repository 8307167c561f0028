//! Flat memory: parameters packed in buckets that one collective moves.

mod countdown;
mod layout;
mod numbers;
mod on_device;
mod peers;
mod store;

pub use countdown::Countdown;
pub use layout::{Bucket, BucketId, ByRows, GRAIN, Layout, Packing, Piece};
pub use numbers::{Dtype, Numbers, View};
pub use on_device::OnDevice;
pub use peers::{Peers, Ranks};
pub use store::Store;

#[cfg(test)]
mod tests;
