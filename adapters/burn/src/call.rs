//! Collectives on the data of tensors, in host memory.

use crate::error::{Error, Result};
use burn::tensor::{DType, TensorData};
use unisono::schedule::Collective;
use unisono::{Communicator, OpBuffers, Operation, ReduceOp};

/// A collective on a tensor. The first dimension is the one that ranks share out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    AllReduce(ReduceOp),
    /// Concatenates along the first dimension.
    AllGather,
    /// Sums, and keeps the rows of this rank.
    ReduceScatter,
    Broadcast(usize),
    /// Sums at the root. The other ranks get zeros.
    Reduce(usize),
    AllToAll,
}

impl Kind {
    /// Returns the collective that carries gradients of the output back to the inputs, if the loss
    /// is the sum of the losses of all ranks.
    pub(crate) fn adjoint(self) -> Self {
        match self {
            Self::AllReduce(op) => Self::AllReduce(op),
            Self::AllGather => Self::ReduceScatter,
            Self::ReduceScatter => Self::AllGather,
            Self::Broadcast(root) => Self::Reduce(root),
            Self::Reduce(root) => Self::Broadcast(root),
            Self::AllToAll => Self::AllToAll,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::AllReduce(_) => "all_reduce",
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::Broadcast(_) => "broadcast",
            Self::Reduce(_) => "reduce",
            Self::AllToAll => "all_to_all",
        }
    }

    /// Returns the shape of the output.
    fn output_shape(self, comm: &Communicator, shape: &[usize]) -> Result<Vec<usize>> {
        let (ranks, mut output) = (comm.size(), shape.to_vec());
        let rows = output.first_mut();
        let fits = match (self, rows) {
            (Self::AllGather, Some(rows)) => {
                *rows *= ranks;
                true
            }
            (Self::ReduceScatter, Some(rows)) if rows.is_multiple_of(ranks) => {
                *rows /= ranks;
                true
            }
            (Self::AllToAll, Some(rows)) => rows.is_multiple_of(ranks),
            (Self::AllReduce(_) | Self::Broadcast(_) | Self::Reduce(_), _) => true,
            _ => false,
        };
        let uneven =
            || Error::UnevenRows { operation: self.name(), rank: comm.rank(), shape: shape.to_vec(), ranks };
        fits.then_some(output).ok_or_else(uneven)
    }

    /// Returns the same collective for the core, with `elements` in the tensor of this rank.
    fn operation(self, comm: &Communicator, dtype: unisono::DType, elements: usize) -> Operation {
        let (collective, reduction, root) = match self {
            Self::AllReduce(op) => (Collective::AllReduce, Some(op), 0),
            Self::AllGather => (Collective::AllGather, None, 0),
            Self::ReduceScatter => (Collective::ReduceScatter, Some(ReduceOp::Sum), 0),
            Self::Broadcast(root) => (Collective::Broadcast, None, root),
            Self::Reduce(root) => (Collective::Reduce, Some(ReduceOp::Sum), root),
            Self::AllToAll => (Collective::AllToAll, None, 0),
        };
        let is_shared = matches!(self, Self::ReduceScatter | Self::AllToAll);
        let count = if is_shared { elements / comm.size() } else { elements };
        let operation = Operation::new(collective, dtype, count).with_root(root);
        reduction.into_iter().fold(operation, Operation::with_reduction)
    }
}

/// Runs a collective on the data of a tensor and returns the data of the result.
pub(crate) fn run(comm: &Communicator, kind: Kind, data: TensorData) -> Result<TensorData> {
    let (mut bytes, shape, dtype) = data.into_parts();
    let output_shape = kind.output_shape(comm, &shape.to_vec())?;
    let unsupported = || Error::UnsupportedDType { operation: kind.name(), rank: comm.rank(), dtype };
    let element = element_type(dtype).ok_or_else(unsupported)?;
    let operation = kind.operation(comm, element, shape.num_elements());
    if matches!(kind, Kind::AllReduce(_) | Kind::Broadcast(_)) {
        comm.run_operation(&operation, OpBuffers::InPlace(&mut bytes))?;
        return Ok(TensorData::from_bytes(bytes, output_shape, dtype));
    }
    let mut output = zeros(&output_shape, element.size())
        .ok_or_else(|| Error::OutOfMemory { operation: kind.name(), rank: comm.rank(), shape: output_shape.clone() })?;
    comm.run_operation(&operation, OpBuffers::Separate { input: &bytes, output: &mut output })?;
    Ok(TensorData::from_bytes_vec(output, output_shape, dtype))
}

/// Returns the bytes of a tensor of zeros, if memory holds them: an output may have a share for
/// each rank.
fn zeros(shape: &[usize], element_bytes: usize) -> Option<Vec<u8>> {
    let bytes = shape.iter().try_fold(element_bytes, |bytes, &dimension| bytes.checked_mul(dimension))?;
    let mut zeros = Vec::new();
    zeros.try_reserve_exact(bytes).ok()?;
    zeros.resize(bytes, 0);
    Some(zeros)
}

/// Returns the element type of the core, if the core can reduce elements of this type.
pub(crate) fn element_type(dtype: DType) -> Option<unisono::DType> {
    Some(match dtype {
        DType::F64 => unisono::DType::F64,
        DType::F32 => unisono::DType::F32,
        DType::F16 => unisono::DType::F16,
        DType::BF16 => unisono::DType::BF16,
        DType::I64 => unisono::DType::I64,
        DType::I32 => unisono::DType::I32,
        DType::I8 => unisono::DType::I8,
        DType::U64 => unisono::DType::U64,
        DType::U32 => unisono::DType::U32,
        DType::U8 => unisono::DType::U8,
        _ => return None,
    })
}
