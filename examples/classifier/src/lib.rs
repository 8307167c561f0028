//! Classifiers of tables and images: an example of a model and data of the user's own, trained with
//! `unisono-trainer`.
//!
//! - [`Classifier`] implements the trainer's `Model`: a list of blocks, each a unit of parameters.
//! - [`Conv2d`] implements the trainer's `Module`: forward and backward of a layer.
//! - [`Table`] reads samples, and [`Samples`] is the type of a micro-batch.
//! - [`train`] takes the steps, with any strategy of data parallelism.
#![forbid(unsafe_code)]

mod conv2d;
mod images;
mod model;
mod table;
mod training;

pub use conv2d::{Conv2d, Conv2dShape};
pub use images::images_of_bars;
pub use model::{Classifier, Samples};
pub use table::{Standardizer, Table};
pub use training::{Outcome, Result, Training, on_ranks, train};
