//! Gradients of a module, reduced over all ranks.

use crate::call::element_type;
use crate::error::{Error, Result};
use crate::tensor::reduce_op;
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::distributed::ReduceOperation;
use burn::tensor::{DType, Tensor, TensorData};
use std::collections::VecDeque;
use unisono::schedule::Collective;
use unisono::{Communicator, OpBuffers, Operation, Work};

/// Reduces the gradients of a module over all ranks, on every backend of Burn.
///
/// Gradients are packed into buckets. A bucket is reduced in the background while the next one is
/// packed. Buckets are filled in the order of the module's parameters, which is the same on all
/// ranks; the ids of parameters may differ.
///
/// ```
/// use burn::tensor::{Device, distributed::ReduceOperation};
/// use burn::{module::{Module, Param}, optim::GradientsParams, tensor::Tensor};
/// use unisono::Communicator;
/// use unisono_burn::GradientSync;
///
/// #[derive(Module, Debug)]
/// struct Scale {
///     factor: Param<Tensor<1>>,
/// }
///
/// let ranks = Communicator::local(2)?;
/// std::thread::scope(|scope| {
///     for comm in ranks {
///         scope.spawn(move || {
///             let device = Device::flex().autodiff();
///             let model = Scale { factor: Param::from_data([1.0, 1.0], &device) };
///             let input = Tensor::<1>::from_floats([comm.rank() as f32, 4.0], &device);
///             let loss = (model.factor.val() * input).sum();
///             let gradients = GradientsParams::from_grads(loss.backward(), &model);
///             let sync = GradientSync::new(&comm, ReduceOperation::Mean);
///             let gradients = sync.reduce(gradients, &model).unwrap();
///             let mean = gradients.get::<1>(model.factor.id).unwrap();
///             assert_eq!(mean.into_data().try_to_vec::<f32>().unwrap(), [0.5, 4.0]);
///         });
///     }
/// });
/// # Ok::<(), unisono::Error>(())
/// ```
#[derive(Clone)]
pub struct GradientSync {
    comm: Communicator,
    op: ReduceOperation,
    bucket_bytes: usize,
}

/// Bytes of a bucket, if the caller sets no other size.
const BUCKET_BYTES: usize = 1 << 20;

impl GradientSync {
    /// Creates a reduction of gradients by `op` over the ranks of `comm`.
    pub fn new(comm: &Communicator, op: ReduceOperation) -> Self {
        Self { comm: comm.clone(), op, bucket_bytes: BUCKET_BYTES }
    }

    /// Sets the bytes from which a bucket is full. The default is 1 MiB. All ranks give the same
    /// size.
    pub fn with_bucket_bytes(self, bucket_bytes: usize) -> Self {
        Self { bucket_bytes, ..self }
    }

    /// Returns the gradients of `module`, reduced over all ranks.
    ///
    /// A parameter without a gradient on this rank counts as zeros, so that ranks may take
    /// different branches of a model. Every parameter that requires a gradient has one in the
    /// result.
    ///
    /// # Errors
    /// [`Error::Collective`] if the modules of two ranks differ in size or a rank fails, and
    /// [`Error::UnsupportedDType`] for elements that have no reduction.
    pub fn reduce<M: Module>(&self, gradients: GradientsParams, module: &M) -> Result<GradientsParams> {
        let mut packer = Packer {
            sync: self,
            gradients,
            filling: Bucket::default(),
            started: VecDeque::new(),
            failure: None,
        };
        module.visit(&mut packer);
        packer.start_bucket();
        if let Some(failure) = packer.failure {
            // Operations that were started still run; the other ranks take part in them.
            return Err(failure);
        }
        let gradients = packer.gradients;
        let mut unpacker =
            Unpacker { gradients, pending: packer.started, ready: VecDeque::new(), failure: None };
        module.visit(&mut unpacker);
        unpacker.failure.map_or(Ok(unpacker.gradients), Err)
    }
}

impl std::fmt::Debug for GradientSync {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "GradientSync({:?}, {} bytes)", self.op, self.bucket_bytes)
    }
}

/// Gradients of one element type, packed one after the other.
///
/// The buckets of `unisono-parallel` are others, because they keep parameters
/// (docs/decisions/0025-adapters-have-buckets-of-their-own.md).
#[derive(Default)]
struct Bucket {
    bytes: Vec<u8>,
    dtype: Option<DType>,
    /// The bytes of each gradient.
    lengths: Vec<usize>,
}

/// Packs gradients into buckets and starts their reductions.
struct Packer<'s> {
    sync: &'s GradientSync,
    gradients: GradientsParams,
    filling: Bucket,
    started: VecDeque<(Work<Vec<u8>>, Vec<usize>)>,
    failure: Option<Error>,
}

impl Packer<'_> {
    /// Starts the reduction of the bucket that is being filled.
    fn start_bucket(&mut self) {
        let Bucket { mut bytes, dtype, lengths } = std::mem::take(&mut self.filling);
        let Some(element) = dtype.and_then(element_type) else { return };
        let op = reduce_op(self.sync.op);
        let work = self.sync.comm.spawn(move |comm| {
            let count = bytes.len() / element.size();
            let operation = Operation::new(Collective::AllReduce, element, count).with_reduction(op);
            comm.run_operation(&operation, OpBuffers::InPlace(&mut bytes)).map(|()| bytes)
        });
        self.started.push_back((work, lengths));
    }

    fn add(&mut self, data: &TensorData) {
        let dtype = data.dtype();
        if element_type(dtype).is_none() {
            let rank = self.sync.comm.rank();
            self.failure = Some(Error::UnsupportedDType { operation: "all_reduce", rank, dtype });
            return;
        }
        if self.filling.dtype.is_some_and(|other| other != dtype) {
            self.start_bucket();
        }
        self.filling.dtype = Some(dtype);
        self.filling.bytes.extend_from_slice(data.as_bytes());
        self.filling.lengths.push(data.as_bytes().len());
        if self.filling.bytes.len() >= self.sync.bucket_bytes {
            self.start_bucket();
        }
    }
}

impl ModuleVisitor for Packer<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.failure.is_none() && param.is_require_grad() {
            let gradient = self.gradients.get::<D>(param.id);
            self.add(&gradient.unwrap_or_else(|| zeros_like(param)).into_data());
        }
    }
}

/// Replaces gradients by the reduced ones, in the order in which they were packed.
struct Unpacker {
    gradients: GradientsParams,
    pending: VecDeque<(Work<Vec<u8>>, Vec<usize>)>,
    ready: VecDeque<Vec<u8>>,
    failure: Option<Error>,
}

impl Unpacker {
    /// Returns the bytes of the next gradient. Waits for its bucket.
    fn next(&mut self) -> Result<Vec<u8>> {
        while self.ready.is_empty() {
            let (work, lengths) = self.pending.pop_front().expect("both visits see the same parameters");
            let bytes = work.wait()?;
            let mut gradients = bytes.as_slice();
            for length in lengths {
                let (gradient, tail) = gradients.split_at(length);
                self.ready.push_back(gradient.to_vec());
                gradients = tail;
            }
        }
        Ok(self.ready.pop_front().expect("a bucket has gradients"))
    }
}

impl ModuleVisitor for Unpacker {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.failure.is_some() || !param.is_require_grad() {
            return;
        }
        let local = self.gradients.remove::<D>(param.id).unwrap_or_else(|| zeros_like(param));
        match self.next() {
            Ok(bytes) => {
                let data = TensorData::from_bytes_vec(bytes, local.shape(), local.dtype());
                let reduced = Tensor::<D>::from_data(data, (&local.device(), local.dtype()));
                self.gradients.register(param.id, reduced);
            }
            Err(error) => self.failure = Some(error),
        }
    }
}

/// Returns the gradient of a parameter on which the loss of this rank does not depend.
fn zeros_like<const D: usize>(param: &Param<Tensor<D>>) -> Tensor<D> {
    Tensor::zeros_like(&param.val().inner())
}
