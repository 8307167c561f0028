//! What the host knows of the kernels in `cuda/kernels`: their names and their arguments.

mod arguments;
pub mod model;
mod schedule;
mod table;

pub use arguments::{Channel, Exchange, Fifo, Patience, ReduceCopy, State, Status};
pub use schedule::{Act, Extent, Interpret, Neighbour, OneShot, Place, Port, Share, Space, Strand, Verb};
