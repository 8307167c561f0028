//! Flat buffers: parameters packed into buckets that one collective can move.

mod bucket_tracker;
mod buffer;
mod device_buffer;
mod layout;
mod param_store;

pub use crate::bucket::bucket_tracker::BucketTracker;
pub use crate::bucket::buffer::{FlatBuffer, FloatView};
pub use crate::bucket::device_buffer::DeviceBuffer;
pub use crate::bucket::param_store::ParamStore;
pub use layout::{ALIGNMENT, Bucket, BucketEntry, BucketId, Layout, Packing, ShardByRows};

#[cfg(test)]
mod tests;
