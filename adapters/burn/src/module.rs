//! Parameters of a module, equal on all ranks.

use crate::error::Result;
use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use unisono::schedule::Collective;
use unisono::{Communicator, DType, OpBuffers, Operation};

/// Returns the module with the parameters of the root, on every rank.
///
/// Float, integer and boolean parameters are copied, of every element type. Ids of parameters,
/// devices and settings stay those of this rank.
///
/// # Errors
/// [`Error::Collective`](crate::Error::Collective) if the modules of two ranks differ in size, if
/// there is no such root, or if a rank fails.
///
/// ```
/// use burn::module::{Module, Param};
/// use burn::tensor::{Device, Tensor};
/// use unisono::Communicator;
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
///             let factor = Param::from_data([comm.rank() as f32 + 1.0], &Device::flex());
///             let model = unisono_burn::broadcast_module(Scale { factor }, 0, &comm).unwrap();
///             assert_eq!(model.factor.val().into_scalar::<f32>(), 1.0);
///         });
///     }
/// });
/// # Ok::<(), unisono::Error>(())
/// ```
pub fn broadcast_module<M: Module>(module: M, root: usize, comm: &Communicator) -> Result<M> {
    let mut mapper = Broadcaster { comm, root, failure: None };
    let module = module.map(&mut mapper);
    mapper.failure.map_or(Ok(module), |error| Err(error.into()))
}

struct Broadcaster<'c> {
    comm: &'c Communicator,
    root: usize,
    failure: Option<unisono::Error>,
}

impl Broadcaster<'_> {
    /// Returns the data of the root, or this rank's after a failure.
    fn broadcast(&mut self, data: TensorData) -> TensorData {
        let (mut bytes, shape, dtype) = data.into_parts();
        if self.failure.is_none() {
            let operation =
                Operation::new(Collective::Broadcast, DType::U8, bytes.len()).with_root(self.root);
            self.failure = self.comm.run_operation(&operation, OpBuffers::InPlace(&mut bytes)).err();
        }
        TensorData::from_bytes(bytes, shape, dtype)
    }
}

impl ModuleMapper for Broadcaster<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let is_trained = param.is_require_grad();
        let param = param.map(|tensor| {
            let (device, dtype): (Device, _) = (tensor.device(), tensor.dtype());
            Tensor::from_data(self.broadcast(tensor.into_data()), (&device, dtype))
        });
        param.set_require_grad(is_trained)
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        param.map(|tensor| {
            let (device, dtype) = (tensor.device(), tensor.dtype());
            Tensor::from_data(self.broadcast(tensor.into_data()), (&device, dtype))
        })
    }

    fn map_bool<const D: usize>(&mut self, param: Param<Tensor<D, Bool>>) -> Param<Tensor<D, Bool>> {
        param.map(|tensor| {
            let device = tensor.device();
            Tensor::from_data(self.broadcast(tensor.into_data()), &device)
        })
    }
}
