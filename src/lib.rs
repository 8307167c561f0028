//! Collective communication for Rust: all_reduce and its relatives between the
//! threads of a process, the processes of a host, and hosts.
//!
//! ```
//! use unisono::Sum;
//!
//! // Four ranks as threads of this process.
//! let sums = unisono::local(4, |comm| {
//!     let mut gradients = vec![comm.rank() as f32; 1000];
//!     comm.all_reduce(&mut gradients, Sum)?;
//!     Ok(gradients[0])
//! })?;
//! println!("{sums:?}"); // [6.0, 6.0, 6.0, 6.0], because 0 + 1 + 2 + 3 = 6
//! # assert_eq!(sums, [6.0; 4]);
//! # Ok::<(), unisono::Error>(())
//! ```
//!
//! If the ranks are processes, [`Communicator::from_env`] connects them, with the settings that
//! `unisono run` or torchrun puts into the environment. The rest of the program is the same.
//!
//! A collective algorithm is a value, a [`schedule::Schedule`], which is built without I/O.
//! [`schedule::check`] proves it correct, the engine runs it over any transport, and
//! [`schedule::draw`] draws it. To add an algorithm, you write one function that builds its
//! schedule.
//!
//! # Features
//!
//! | feature | adds |
//! |---|---|
//! | `serde`, on by default | collectives of objects, such as `Communicator::broadcast_object` |
//! | `gpu` | ranks on GPUs, whose driver is found when the program runs |
//! | `nvrtc` | reductions of one's own on GPUs |
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

pub mod bootstrap;
mod communicator;
mod config;
#[cfg(feature = "gpu")]
pub mod device;
#[cfg(doctest)]
mod doctests;
mod engine;
mod error;
mod flight;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod hash;
mod log;
mod op_desc;
mod reduce_op;
pub mod schedule;
pub mod select;
pub mod status;
mod sync;
mod tuning;

pub use crate::bootstrap::{BootstrapError, FileStore, Store, UniqueId};
pub use crate::op_desc::{OpDesc, OpKind};
pub use crate::reduce_op::ReduceOp::{
    Avg, BitAnd, BitOr, BitXor, Max, MaxLoc, Min, MinLoc, PreMulSum, Prod, Sum,
};
pub use crate::reduce_op::{CustomOp, ReduceOp};
pub use communicator::foreign;
pub use communicator::{
    CallOptions, ChildBuilder, Communicator, CommunicatorBuilder, Group, ListOperation, OpBuffers, Operation,
    RecvBuffer, Scope, ScopedWork, SendBuffer, SymmetricBuffer, UnevenOperation, Work, local,
    register_algorithm,
};
pub use config::{Config, DeviceConfig, Interface, LaunchMode, ReductionOrder, Transport, parse_algorithms};
pub use engine::messages::MessageInfo;
pub use engine::{MemoryStats, TrafficStats};
pub use error::{AbortCause, Error, ErrorKind, Result};
pub use flight::{FlightRecord, OpRecord, OpState};
pub use unisono_reducers::{
    Bool, Complex, DType, DTypeClass, Element, F8E4M3, F8E5M2, Locatable, Located, ReduceKind, Scalar, bf16,
    f16,
};
/// The crate of transports. It defines fabrics and links, which you need to write your own
/// transport.
pub use unisono_transports as transport;
pub use unisono_transports::WaitMode;
