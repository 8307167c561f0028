//! What the host knows of the kernels in `cuda/kernels`: their names and their arguments.

mod arguments;

pub use arguments::{Channel, Exchange, Fifo, Patience, ReduceCopy, State, Status};
