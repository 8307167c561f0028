//! Gradients that are averaged over all ranks.

use crate::bucket::{BUCKET_BYTES, Bucket};
use crate::collective::{self, Kind};
use crate::error::Result;
use crate::params::Params;
use candle_core::backprop::GradStore;
use candle_core::{DType, Tensor, Var};
use unisono::Communicator;

/// Averages the gradients of a model over all ranks.
///
/// Gradients are packed into buckets. A bucket is reduced in the background while the next one is
/// packed. Any optimizer can then take its step: all ranks take the same one.
///
/// ```
/// use candle_core::{Device, Tensor, Var};
/// use candle_nn::{Optimizer, SGD};
/// use unisono::Communicator;
/// use unisono_candle::DataParallel;
///
/// fn train(comm: &Communicator) -> unisono_candle::Result<()> {
///     let factor = Var::new(1.0f32, &Device::Cpu)?;
///     let parallel = DataParallel::new(comm, vec![factor.clone()])?;
///     let mut optimizer = SGD::new(vec![factor.clone()], 0.5)?;
///     let input = Tensor::new(comm.rank() as f32, &Device::Cpu)?;
///     let loss = (factor.as_tensor() * input)?;
///     optimizer.step(&parallel.backward(&loss)?)?;
///     assert_eq!(factor.to_scalar::<f32>()?, 0.75);
///     Ok(())
/// }
///
/// let ranks = Communicator::local(2)?;
/// std::thread::scope(|scope| {
///     for comm in ranks {
///         scope.spawn(move || train(&comm).unwrap());
///     }
/// });
/// # Ok::<(), unisono::Error>(())
/// ```
#[derive(Clone)]
pub struct DataParallel {
    comm: Communicator,
    params: Params,
    buckets: Vec<Bucket>,
}

impl DataParallel {
    /// Copies the parameters of rank 0 to all ranks, which then train them together.
    ///
    /// # Errors
    /// [`Error::DifferentModels`](crate::Error::DifferentModels) if the models of two ranks differ,
    /// [`Error::UnsupportedDType`](crate::Error::UnsupportedDType) for a variable that no
    /// collective carries, and errors of the collectives and of candle.
    pub fn new(comm: &Communicator, params: impl Into<Params>) -> Result<Self> {
        let params = params.into();
        params.check_equal(comm)?;
        params.broadcast(comm, 0)?;
        let buckets = Bucket::divide(&params, BUCKET_BYTES);
        Ok(Self { comm: comm.clone(), params, buckets })
    }

    /// Sets the bytes from which a bucket is full. The default is 1 MiB. All ranks give the same
    /// size.
    pub fn with_bucket_bytes(self, bucket_bytes: usize) -> Self {
        Self { buckets: Bucket::divide(&self.params, bucket_bytes), ..self }
    }

    /// Returns the gradients of a loss, averaged over all ranks.
    ///
    /// # Errors
    /// As [`DataParallel::average`].
    pub fn backward(&self, loss: &Tensor) -> Result<GradStore> {
        let mut gradients = loss.backward()?;
        self.average(&mut gradients)?;
        Ok(gradients)
    }

    /// Replaces gradients by their mean over all ranks.
    ///
    /// A variable without a gradient on this rank counts as zeros. It has a gradient afterwards if
    /// it has one on any rank.
    ///
    /// # Errors
    /// Errors of the collectives and of candle.
    pub fn average(&self, gradients: &mut GradStore) -> Result<()> {
        let start = |bucket: &Bucket| {
            let mut flat = bucket.flat_gradients(gradients)?;
            flat.push(presence(bucket, gradients)?);
            collective::start(&self.comm, Kind::Mean, &Tensor::cat(&flat, 0)?)
        };
        let started: Vec<_> = self.buckets.iter().map(start).collect::<Result<_>>()?;
        for (bucket, pending) in self.buckets.iter().zip(started) {
            let flat = pending()?;
            let present = flat.narrow(0, bucket.elements(), bucket.vars.len())?;
            let present = present.to_dtype(DType::F32)?.to_vec1::<f32>()?;
            for ((var, mean), present) in bucket.vars.iter().zip(bucket.unpack(&flat)?).zip(present) {
                if present > 0.0 {
                    gradients.insert(var, mean);
                }
            }
        }
        Ok(())
    }
}

impl std::fmt::Debug for DataParallel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DataParallel({} variables, {} buckets)", self.params.vars().len(), self.buckets.len())
    }
}

/// Returns one element for each variable of a bucket: 1 if it has a gradient on this rank.
fn presence(bucket: &Bucket, gradients: &GradStore) -> Result<Tensor> {
    let is_present = |var: &Var| f32::from(u8::from(gradients.get(var).is_some()));
    let values: Vec<f32> = bucket.vars.iter().map(is_present).collect();
    let first = &bucket.vars[0];
    Ok(Tensor::from_vec(values, bucket.vars.len(), first.device())?.to_dtype(first.dtype())?)
}
