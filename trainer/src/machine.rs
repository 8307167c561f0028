//! Measurements of this machine, which plans and reports of runs use: rates of computation, memory
//! and links, and the cost of exchanges between ranks that share cores.

mod exchange_costs;
mod here;
mod peak_flops;
mod transfers;

pub(crate) use exchange_costs::core_seconds;
pub(crate) use here::hardware;
pub use here::this_machine;
pub(crate) use peak_flops::{peak_flops, peak_flops_on};
pub use transfers::sweep;
