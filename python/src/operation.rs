//! One operation with its memory, as the Python side describes it.

use crate::communicator::timeout_of;
use crate::error::argument;
use crate::point_to_point::{Described, Group};
use crate::segments::{Segments, with_buffers, with_lists};
use pyo3::prelude::*;
use std::iter::repeat_n;
use std::time::Duration;
use unisono::schedule::Collective;
use unisono::{DType, ListOperation, OpBuffers, ReduceOp, Result, Scalar, UnevenOperation};

/// An operation with the addresses of its memory. Its user keeps that memory alive.
#[pyclass(frozen, module = "unisono._native")]
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    kind: Kind,
    input: Segments,
    output: Segments,
}

#[derive(Clone, Debug)]
enum Kind {
    Even { collective: Collective, dtype: DType, reduction: Option<ReduceOp>, root: usize, lists: bool },
    AllGatherV { dtype: DType, counts: Vec<usize> },
    ReduceScatterV { dtype: DType, counts: Vec<usize>, reduction: ReduceOp },
    AllToAllV { dtype: DType, sends: Vec<usize>, receives: Vec<usize> },
    GatherV { dtype: DType, counts: Vec<usize>, root: usize },
    ScatterV { dtype: DType, counts: Vec<usize>, root: usize },
    BarrierTimeout { timeout: Duration },
    Send { dtype: DType, peer: usize },
    Recv { dtype: DType, peer: usize },
    Group(Group),
}

#[pymethods]
impl Operation {
    /// Describes a collective of equal shares.
    ///
    /// With `lists`, which all ranks set alike, shares are buffers of their own. Long ones travel
    /// without being copied together.
    #[staticmethod]
    #[pyo3(signature = (collective, dtype, input, output, reduction=None, root=0, lists=false))]
    #[allow(clippy::too_many_arguments, reason = "named arguments of Python")]
    fn even(
        py: Python<'_>,
        collective: &str,
        dtype: &str,
        input: Segments,
        output: Segments,
        reduction: Option<(String, Option<Factor>)>,
        root: usize,
        lists: bool,
    ) -> PyResult<Self> {
        let Some(collective) = Collective::ALL.into_iter().find(|candidate| candidate.name() == collective)
        else {
            return Err(argument(py, format!("`{collective}` is no collective")));
        };
        let dtype = checked_dtype(py, collective.name(), dtype)?;
        let reduction = reduction.map(|(name, factor)| reduce_op(py, &name, factor)).transpose()?;
        let kind = Kind::Even { collective, dtype, reduction, root, lists };
        Ok(Self { kind, input, output })
    }

    /// Describes an all_gather with a number of bytes for each rank.
    #[staticmethod]
    #[pyo3(signature = (input, output, counts, dtype="uint8"))]
    fn all_gather_v(
        py: Python<'_>,
        input: Segments,
        output: Segments,
        counts: Vec<usize>,
        dtype: &str,
    ) -> PyResult<Self> {
        let dtype = checked_dtype(py, "all_gather_v", dtype)?;
        Ok(Self { kind: Kind::AllGatherV { dtype, counts }, input, output })
    }

    /// Describes a reduce_scatter with a number of elements for each rank.
    #[staticmethod]
    fn reduce_scatter_v(
        py: Python<'_>,
        dtype: &str,
        input: Segments,
        output: Segments,
        counts: Vec<usize>,
        reduction: (String, Option<Factor>),
    ) -> PyResult<Self> {
        let dtype = checked_dtype(py, "reduce_scatter_v", dtype)?;
        let reduction = reduce_op(py, &reduction.0, reduction.1)?;
        let kind = Kind::ReduceScatterV { dtype, counts, reduction };
        Ok(Self { kind, input, output })
    }

    /// Describes an all_to_all with numbers of bytes to and from each rank.
    #[staticmethod]
    #[pyo3(signature = (input, output, sends, receives, dtype="uint8"))]
    fn all_to_all_v(
        py: Python<'_>,
        input: Segments,
        output: Segments,
        sends: Vec<usize>,
        receives: Vec<usize>,
        dtype: &str,
    ) -> PyResult<Self> {
        let kind = Kind::AllToAllV { dtype: checked_dtype(py, "all_to_all_v", dtype)?, sends, receives };
        Ok(Self { kind, input, output })
    }

    /// Describes a gather with a number of bytes for each rank, which the root alone gives.
    #[staticmethod]
    #[pyo3(signature = (input, output, counts, root, dtype="uint8"))]
    fn gather_v(
        py: Python<'_>,
        input: Segments,
        output: Segments,
        counts: Vec<usize>,
        root: usize,
        dtype: &str,
    ) -> PyResult<Self> {
        let kind = Kind::GatherV { dtype: checked_dtype(py, "gather_v", dtype)?, counts, root };
        Ok(Self { kind, input, output })
    }

    /// Describes a scatter with a number of bytes for each rank, which the root alone gives.
    #[staticmethod]
    #[pyo3(signature = (input, output, counts, root, dtype="uint8"))]
    fn scatter_v(
        py: Python<'_>,
        input: Segments,
        output: Segments,
        counts: Vec<usize>,
        root: usize,
        dtype: &str,
    ) -> PyResult<Self> {
        let kind = Kind::ScatterV { dtype: checked_dtype(py, "scatter_v", dtype)?, counts, root };
        Ok(Self { kind, input, output })
    }

    /// Describes a barrier that names the ranks which do not come within `timeout` seconds.
    #[staticmethod]
    fn barrier_timeout(py: Python<'_>, timeout: f64) -> PyResult<Self> {
        let kind = Kind::BarrierTimeout { timeout: timeout_of(py, timeout)? };
        Ok(Self { kind, input: Segments::default(), output: Segments::default() })
    }

    /// Describes a send to a rank.
    #[staticmethod]
    #[pyo3(signature = (input, peer, dtype="uint8"))]
    fn send(py: Python<'_>, input: Segments, peer: usize, dtype: &str) -> PyResult<Self> {
        let kind = Kind::Send { dtype: checked_dtype(py, "send", dtype)?, peer };
        Ok(Self { kind, input, output: Segments::default() })
    }

    /// Describes a receive from a rank.
    #[staticmethod]
    #[pyo3(signature = (output, peer, dtype="uint8"))]
    fn recv(py: Python<'_>, output: Segments, peer: usize, dtype: &str) -> PyResult<Self> {
        let kind = Kind::Recv { dtype: checked_dtype(py, "recv", dtype)?, peer };
        Ok(Self { kind, input: Segments::default(), output })
    }

    /// Describes sends and receives that run together.
    #[staticmethod]
    fn group(py: Python<'_>, sends: Vec<Described>, receives: Vec<Described>) -> PyResult<Self> {
        let kind = Kind::Group(Group::new(py, sends, receives)?);
        Ok(Self { kind, input: Segments::default(), output: Segments::default() })
    }
}

/// The factor of a pre-multiplied sum.
#[derive(FromPyObject, Clone, Copy, Debug)]
pub(crate) enum Factor {
    Int(i64),
    Uint(u64),
    Float(f64),
}

impl Operation {
    /// Runs the operation.
    ///
    /// # Safety
    /// The memory of input and output is valid, the latter for writes, and nobody else accesses it
    /// during the call. In place, both are valid for writes.
    pub(crate) unsafe fn run(&self, comm: &unisono::Communicator) -> Result<()> {
        let Self { kind, input, output } = self;
        match kind {
            Kind::Even { collective: Collective::Barrier, .. } => comm.barrier(),
            // SAFETY: by the contract.
            Kind::Even { .. } => unsafe { self.run_even(comm) },
            // SAFETY: by the contract. An input that overlaps the output is copied.
            Kind::AllGatherV { dtype, counts } => unsafe {
                separate(input, output, |input, output| all_gather_v(comm, *dtype, counts, input, output))
            },
            Kind::ReduceScatterV { dtype, counts, reduction } => {
                let operation = UnevenOperation::reduce_scatter(*dtype, counts, *reduction);
                let offset: usize = counts.iter().take(comm.rank()).sum();
                let run = |buffers: OpBuffers<'_>| comm.run_uneven_operation(&operation, buffers);
                // SAFETY: by the contract.
                unsafe { with_buffers(input, output, offset.saturating_mul(dtype.size()), run) }
            }
            // SAFETY: as above.
            Kind::AllToAllV { dtype, sends, receives } => unsafe {
                let operation = ListOperation::new(Collective::AllToAll, *dtype);
                let lists = (sends.iter().copied(), receives.iter().copied());
                if let Some(ended) = self.run_lists(comm, operation, lists) {
                    return ended;
                }
                separate(input, output, |input, output| {
                    all_to_all_v(comm, *dtype, (sends, receives), input, output)
                })
            },
            // SAFETY: as above.
            Kind::GatherV { dtype, counts, root } => unsafe {
                separate(input, output, |input, output| {
                    gather_v(comm, (*dtype, *root), counts, input, output)
                })
            },
            // SAFETY: as above.
            Kind::ScatterV { dtype, counts, root } => unsafe {
                separate(input, output, |input, output| {
                    scatter_v(comm, (*dtype, *root), counts, input, output)
                })
            },
            Kind::BarrierTimeout { timeout } => comm.barrier_timeout(*timeout),
            // SAFETY: by the contract.
            Kind::Send { dtype, peer } => unsafe {
                input.read(|bytes| {
                    comm.group(|group| {
                        let _ = group.send_bytes(*dtype, bytes, *peer);
                    })
                })
            },
            // SAFETY: by the contract.
            Kind::Recv { dtype, peer } => unsafe {
                output.write(|bytes| {
                    comm.group(|group| {
                        let _ = group.recv_bytes(*dtype, bytes, *peer);
                    })
                })
            },
            // SAFETY: by the contract.
            Kind::Group(group) => unsafe { group.run(comm) },
        }
    }
}

impl Operation {
    /// Runs a collective of equal shares, and nothing for another operation.
    ///
    /// # Safety
    /// As [`Operation::run`].
    unsafe fn run_even(&self, comm: &unisono::Communicator) -> Result<()> {
        let Self { kind, input, output } = self;
        let Kind::Even { collective, dtype, reduction, root, lists } = kind else { return Ok(()) };
        let (inputs, outputs) = collective.shares(comm.size(), *root, comm.rank());
        // The side with one share says how long shares are, so that an error is about the
        // other.
        let (bytes, shares) = match (inputs, outputs) {
            (0, _) => (output.bytes(), outputs),
            (_, 1) if inputs > 1 => (output.bytes(), outputs),
            _ => (input.bytes(), inputs),
        };
        let count = bytes / dtype.size() / shares.max(1);
        let share = count * dtype.size();
        if *lists && share * comm.size() >= LISTS_MIN_BYTES {
            let operation = ListOperation::new(*collective, *dtype).with_root(*root);
            let lists = (repeat_n(share, inputs), repeat_n(share, outputs));
            // SAFETY: by the contract.
            if let Some(ended) = unsafe { self.run_lists(comm, operation, lists) } {
                return ended;
            }
        }
        let mut operation = unisono::Operation::new(*collective, *dtype, count).with_root(*root);
        operation.reduction = *reduction;
        let own_offset = comm.rank() * share;
        // SAFETY: by the contract.
        unsafe { with_buffers(input, output, own_offset, |buffers| comm.run_operation(&operation, buffers)) }
    }
}

impl Operation {
    /// Runs the operation on lists of buffers. Returns nothing where the memory is no such lists.
    ///
    /// # Safety
    /// As [`Operation::run`].
    unsafe fn run_lists(
        &self,
        comm: &unisono::Communicator,
        operation: ListOperation,
        (inputs, outputs): (impl IntoIterator<Item = usize>, impl IntoIterator<Item = usize>),
    ) -> Option<Result<()>> {
        // SAFETY: by the contract.
        unsafe {
            with_lists((&self.input, inputs), (&self.output, outputs), |inputs, outputs| {
                comm.run_list_operation(&operation, inputs, outputs)
            })
        }
    }
}

/// Bytes of all shares from which lists are not copied together. Shorter ones take the algorithms
/// of few rounds.
const LISTS_MIN_BYTES: usize = 1 << 20;

/// Runs `operation` on buffers that do not overlap.
///
/// # Safety
/// As [`with_buffers`].
unsafe fn separate(
    input: &Segments,
    output: &Segments,
    operation: impl FnOnce(&[u8], &mut [u8]) -> Result<()>,
) -> Result<()> {
    // No share of its own is in place here: an offset past the end never matches.
    // SAFETY: by the contract.
    unsafe {
        with_buffers(input, output, usize::MAX / 2, |buffers| match buffers {
            OpBuffers::Separate { input, output } => operation(input, output),
            OpBuffers::InPlace(buffer) => {
                let input = buffer.to_vec();
                operation(&input, buffer)
            }
        })
    }
}

fn all_gather_v(
    comm: &unisono::Communicator,
    dtype: DType,
    counts: &[usize],
    input: &[u8],
    output: &mut [u8],
) -> Result<()> {
    match elements(counts, dtype) {
        Some(counts) => {
            let operation = UnevenOperation::all_gather(dtype, &counts);
            comm.run_uneven_operation(&operation, OpBuffers::Separate { input, output })
        }
        None => comm.all_gather_v(input, output, counts),
    }
}

fn all_to_all_v(
    comm: &unisono::Communicator,
    dtype: DType,
    (sends, receives): (&[usize], &[usize]),
    input: &[u8],
    output: &mut [u8],
) -> Result<()> {
    let (Some(inputs), Some(mut outputs)) = (parts(input, sends), parts_mut(&mut *output, receives)) else {
        // Counts that do not add up are its error.
        return comm.all_to_all_v(input, sends, output, receives);
    };
    comm.run_list_operation(&ListOperation::new(Collective::AllToAll, dtype), &inputs, &mut outputs)
}

fn gather_v(
    comm: &unisono::Communicator,
    (dtype, root): (DType, usize),
    counts: &[usize],
    input: &[u8],
    output: &mut [u8],
) -> Result<()> {
    let at_root = comm.rank() == root;
    let fits = counts.len() == shares_of_root(at_root, comm);
    let Some(mut outputs) = parts_mut(&mut *output, counts).filter(|_| fits) else {
        return comm.gather_v(input, at_root.then_some((output, counts)), root);
    };
    let operation = ListOperation::new(Collective::Gather, dtype).with_root(root);
    comm.run_list_operation(&operation, &[input], &mut outputs)
}

fn scatter_v(
    comm: &unisono::Communicator,
    (dtype, root): (DType, usize),
    counts: &[usize],
    input: &[u8],
    output: &mut [u8],
) -> Result<()> {
    let at_root = comm.rank() == root;
    let fits = counts.len() == shares_of_root(at_root, comm);
    let Some(inputs) = parts(input, counts).filter(|_| fits) else {
        return comm.scatter_v(at_root.then_some((input, counts)), output, root);
    };
    let operation = ListOperation::new(Collective::Scatter, dtype).with_root(root);
    comm.run_list_operation(&operation, &inputs, &mut [output])
}

/// Returns the numbers of elements in numbers of bytes, if they are whole.
fn elements(bytes: &[usize], dtype: DType) -> Option<Vec<usize>> {
    let size = dtype.size();
    bytes.iter().map(|bytes| bytes.is_multiple_of(size).then_some(bytes / size)).collect()
}

/// Returns the parts of `counts` bytes each, if they are all bytes.
fn parts<'a>(mut bytes: &'a [u8], counts: &[usize]) -> Option<Vec<&'a [u8]>> {
    let mut next = |&count: &usize| {
        let (part, remainder) = bytes.split_at_checked(count)?;
        bytes = remainder;
        Some(part)
    };
    let parts = counts.iter().map(&mut next).collect::<Option<_>>()?;
    bytes.is_empty().then_some(parts)
}

/// Returns the parts of `counts` bytes each for writing, if they are all bytes.
fn parts_mut<'a>(mut bytes: &'a mut [u8], counts: &[usize]) -> Option<Vec<&'a mut [u8]>> {
    let mut parts = Vec::with_capacity(counts.len());
    for &count in counts {
        let (part, remainder) = std::mem::take(&mut bytes).split_at_mut_checked(count)?;
        parts.push(part);
        bytes = remainder;
    }
    bytes.is_empty().then_some(parts)
}

/// Returns the number of shares that the root of a gather or scatter has, and other ranks have not.
fn shares_of_root(at_root: bool, comm: &unisono::Communicator) -> usize {
    if at_root { comm.size() } else { 0 }
}

/// Returns the element type of a NumPy name, or an error that names the call.
pub(crate) fn checked_dtype(py: Python<'_>, call: &str, name: &str) -> PyResult<DType> {
    dtype_of(name).ok_or_else(|| argument(py, format!("{call} cannot carry elements of type `{name}`")))
}

/// Returns the element type of a NumPy name.
fn dtype_of(name: &str) -> Option<DType> {
    Some(match name {
        "int8" => DType::I8,
        "uint8" => DType::U8,
        "int16" => DType::I16,
        "uint16" => DType::U16,
        "int32" => DType::I32,
        "uint32" => DType::U32,
        "int64" => DType::I64,
        "uint64" => DType::U64,
        "float16" => DType::F16,
        "bfloat16" => DType::BF16,
        "float32" => DType::F32,
        "float64" => DType::F64,
        "float8_e4m3fn" => DType::F8E4M3,
        "float8_e5m2" => DType::F8E5M2,
        "bool" => DType::Bool,
        "complex64" => DType::C64,
        "complex128" => DType::C128,
        _ => return None,
    })
}

const REDUCTIONS: &str = "sum, prod, min, max, avg, pre_mul_sum, bitand, bitor, bitxor";

fn reduce_op(py: Python<'_>, name: &str, factor: Option<Factor>) -> PyResult<ReduceOp> {
    let factor = factor.map(|factor| match factor {
        Factor::Int(value) => Scalar::Int(value),
        Factor::Uint(value) => Scalar::Uint(value),
        Factor::Float(value) => Scalar::Float(value),
    });
    match (name, factor) {
        ("sum", None) => Ok(ReduceOp::Sum),
        ("prod", None) => Ok(ReduceOp::Prod),
        ("min", None) => Ok(ReduceOp::Min),
        ("max", None) => Ok(ReduceOp::Max),
        ("avg", None) => Ok(ReduceOp::Avg),
        ("bitand", None) => Ok(ReduceOp::BitAnd),
        ("bitor", None) => Ok(ReduceOp::BitOr),
        ("bitxor", None) => Ok(ReduceOp::BitXor),
        ("pre_mul_sum", Some(factor)) => Ok(ReduceOp::PreMulSum(factor)),
        ("pre_mul_sum", None) => Err(argument(py, "a pre-multiplied sum needs a factor")),
        (_, Some(_)) => Err(argument(py, format!("`{name}` takes no factor"))),
        _ => Err(argument(py, format!("`{name}` is none of {REDUCTIONS}"))),
    }
}
