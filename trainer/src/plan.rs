//! Plans before a run: how a model of some size is best trained on some hardware, what each rank keeps and sends then, and how long a step
//! takes. Arithmetic alone; the trainer's own formulas where it has them.
//!
//! `unisono-train plan` asks a [`Question`] and prints an [`Answer`]; `unisono-train explain` prints the formulas with the same numbers.

mod answer;
mod axes;
mod decide;
mod explain;
mod hardware;
mod link;
mod measure;
mod pace;
mod question;
mod quickest;
mod recipe;
mod sizes;
mod state;
mod table;
mod warnings;

pub use answer::{Answer, Row};
pub use axes::{Order, attention, combinations, world};
pub use decide::{Decision, Leaf, decide, rule_of_thumb};
pub use hardware::Hardware;
pub use link::{Link, Point, effective_bandwidth, ring, trees};
pub use measure::sweep;
pub use pace::Pace;
pub use question::Question;
pub use recipe::{Recipe, rates};
pub use sizes::{Bytes, Sizes, number};
pub use state::{Cut, gigabytes, operations};

#[cfg(test)]
mod tests;
