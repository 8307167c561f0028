//! Flat buffers: parameters packed into buckets that one collective can move.

mod bucket_tracker;
mod buffer;
mod device_buffer;
mod layout;
mod param_store;

pub use crate::flat::bucket_tracker::BucketTracker;
pub use crate::flat::buffer::{FlatBuffer, FloatView};
pub use crate::flat::device_buffer::DeviceBuffer;
pub use crate::flat::param_store::ParamStore;
pub use layout::{ALIGNMENT, Bucket, BucketEntry, BucketId, Layout, Packing, ShardByRows};

#[cfg(test)]
mod tests;
