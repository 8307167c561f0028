//! Collectives on flat tensors, in the background.

use crate::error::{Error, Result};
use candle_core::{DType, Device, Tensor, Var, WithDType};
use unisono::{Avg, Communicator, Element, Work};

/// An operation that was started. Waits for it and returns its output.
pub(crate) type Pending = Box<dyn FnOnce() -> Result<Tensor>>;

/// The collectives that training needs.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    /// The mean over all ranks.
    Mean,
    /// This rank's share of the mean.
    ShareOfMean,
    /// The shares of all ranks.
    Gather,
}

/// Starts a collective on a tensor of one dimension.
pub(crate) fn start(comm: &Communicator, kind: Kind, flat: &Tensor) -> Result<Pending> {
    match flat.dtype() {
        DType::F16 => start_typed::<unisono::f16>(comm, kind, flat),
        DType::BF16 => start_typed::<unisono::bf16>(comm, kind, flat),
        DType::F32 => start_typed::<f32>(comm, kind, flat),
        DType::F64 => start_typed::<f64>(comm, kind, flat),
        dtype => Err(Error::UnsupportedDType { rank: comm.rank(), dtype }),
    }
}

fn start_typed<T: WithDType + Element>(comm: &Communicator, kind: Kind, flat: &Tensor) -> Result<Pending> {
    let (values, device): (Vec<T>, Device) = (flat.to_vec1()?, flat.device().clone());
    let work: Work<Vec<T>> = match kind {
        Kind::Mean => comm.all_reduce_async(values, Avg),
        Kind::ShareOfMean => comm.reduce_scatter_async(values, Avg),
        Kind::Gather => comm.all_gather_async(values),
    };
    Ok(Box::new(move || {
        let values = work.wait()?;
        let count = values.len();
        Ok(Tensor::from_vec(values, count, &device)?)
    }))
}

/// Copies the variable of rank `root` to all ranks.
pub(crate) fn broadcast(comm: &Communicator, var: &Var, root: usize) -> Result<()> {
    match var.dtype() {
        DType::U8 => broadcast_typed::<u8>(comm, var, root),
        DType::U32 => broadcast_typed::<u32>(comm, var, root),
        DType::I32 => broadcast_typed::<i32>(comm, var, root),
        DType::I64 => broadcast_typed::<i64>(comm, var, root),
        DType::F16 => broadcast_typed::<unisono::f16>(comm, var, root),
        DType::BF16 => broadcast_typed::<unisono::bf16>(comm, var, root),
        DType::F32 => broadcast_typed::<f32>(comm, var, root),
        DType::F64 => broadcast_typed::<f64>(comm, var, root),
        dtype => Err(Error::UnsupportedDType { rank: comm.rank(), dtype }),
    }
}

fn broadcast_typed<T: WithDType + Element>(comm: &Communicator, var: &Var, root: usize) -> Result<()> {
    let mut values = var.flatten_all()?.to_vec1::<T>()?;
    comm.broadcast(&mut values, root)?;
    Ok(var.set(&Tensor::from_vec(values, var.shape(), var.device())?)?)
}
