//! AdamW whose state is divided between the ranks: ZeRO stage 1.

use crate::bucket::{BUCKET_BYTES, Bucket};
use crate::collective::{self, Kind};
use crate::error::Result;
use crate::params::Params;
use candle_core::backprop::GradStore;
use candle_core::{Tensor, Var};
use candle_nn::{AdamW, Optimizer, ParamsAdamW};
use unisono::Communicator;

/// AdamW whose state is divided between the ranks: ZeRO stage 1.
///
/// Each rank keeps the moments of one share of the parameters, and the optimizer's copy of that
/// share. A step averages gradients, updates the own share, and collects the shares of all ranks.
/// The parameters are those of `AdamW` after [`DataParallel`](crate::DataParallel), to the last
/// bit.
///
/// ```
/// use candle_core::{Device, Var};
/// use candle_nn::ParamsAdamW;
/// use unisono::Communicator;
/// use unisono_candle::ShardedAdamW;
///
/// fn train(comm: &Communicator) -> unisono_candle::Result<()> {
///     let weights = Var::new(&[1.0f32, 2.0, 3.0, 4.0], &Device::Cpu)?;
///     let config = ParamsAdamW { lr: 0.1, ..ParamsAdamW::default() };
///     let mut optimizer = ShardedAdamW::new(comm, vec![weights.clone()], config)?;
///     let before = weights.sqr()?.sum_all()?;
///     optimizer.backward_step(&before)?;
///     assert!(weights.sqr()?.sum_all()?.to_scalar::<f32>()? < before.to_scalar::<f32>()?);
///     assert_eq!(optimizer.sharded_elements(), 2);
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
pub struct ShardedAdamW {
    comm: Communicator,
    shards: Vec<Shard>,
    optimizer: AdamW,
}

/// This rank's share of a bucket.
struct Shard {
    bucket: Bucket,
    /// Elements of a share. The last shares may end in padding.
    count: usize,
    /// The parameters of the share.
    own: Var,
}

impl Shard {
    fn new(comm: &Communicator, bucket: Bucket) -> Result<Self> {
        let count = bucket.elements().div_ceil(comm.size());
        let values = bucket.vars.iter().map(|var| var.flatten_all());
        let values = padded(values.collect::<candle_core::Result<_>>()?, &bucket, comm.size() * count)?;
        // A copy: candle sets no variable from a tensor that shares its memory.
        let share = Var::from_tensor(&values.narrow(0, comm.rank() * count, count)?.copy()?)?;
        Ok(Self { bucket, count, own: share })
    }
}

impl ShardedAdamW {
    /// Copies the parameters of rank 0 to all ranks, and divides the state of AdamW between them.
    ///
    /// # Errors
    /// As [`DataParallel::new`](crate::DataParallel::new).
    pub fn new(comm: &Communicator, params: impl Into<Params>, config: ParamsAdamW) -> Result<Self> {
        Self::with_bucket_bytes(comm, params, config, BUCKET_BYTES)
    }

    /// Makes the same optimizer, with the bytes from which a bucket is full. All ranks give the
    /// same size.
    ///
    /// # Errors
    /// As [`ShardedAdamW::new`].
    pub fn with_bucket_bytes(
        comm: &Communicator,
        params: impl Into<Params>,
        config: ParamsAdamW,
        bucket_bytes: usize,
    ) -> Result<Self> {
        let params = params.into();
        params.check_equal(comm)?;
        params.broadcast(comm, 0)?;
        let shards = Bucket::divide(&params, bucket_bytes).into_iter().map(|bucket| Shard::new(comm, bucket));
        let shards: Vec<Shard> = shards.collect::<Result<_>>()?;
        let optimizer = AdamW::new(shards.iter().map(|shard| shard.own.clone()).collect(), config)?;
        Ok(Self { comm: comm.clone(), shards, optimizer })
    }

    /// Takes a step with the gradients of this rank. Every rank must call it.
    ///
    /// A parameter without a gradient counts as zeros; weight decay applies to it.
    ///
    /// # Errors
    /// Errors of the collectives and of candle.
    pub fn step(&mut self, mut gradients: GradStore) -> Result<()> {
        let start = |shard: &Shard| {
            let flat = shard.bucket.flat_gradients(&gradients)?;
            let flat = padded(flat, &shard.bucket, shard.count * self.comm.size())?;
            collective::start(&self.comm, Kind::ShareOfMean, &flat)
        };
        let reduced: Vec<_> = self.shards.iter().map(start).collect::<Result<_>>()?;
        for (shard, pending) in self.shards.iter().zip(reduced) {
            gradients.insert(&shard.own, pending()?);
        }
        self.optimizer.step(&gradients)?;
        self.collect_parameters()
    }

    /// Computes the gradients of a loss and takes a step with them.
    ///
    /// # Errors
    /// As [`ShardedAdamW::step`].
    pub fn backward_step(&mut self, loss: &Tensor) -> Result<()> {
        self.step(loss.backward()?)
    }

    /// Sets all parameters to the shares of the ranks.
    fn collect_parameters(&self) -> Result<()> {
        let start = |shard: &Shard| collective::start(&self.comm, Kind::Gather, &shard.own);
        let started: Vec<_> = self.shards.iter().map(start).collect::<Result<_>>()?;
        for (shard, pending) in self.shards.iter().zip(started) {
            let values = shard.bucket.unpack(&pending()?)?;
            shard.bucket.vars.iter().zip(values).try_for_each(|(var, value)| var.set(&value))?;
        }
        Ok(())
    }

    /// Returns the number of parameters whose state this rank keeps, padding included.
    pub fn sharded_elements(&self) -> usize {
        self.shards.iter().map(|shard| shard.count).sum()
    }

    /// Returns the learning rate.
    pub fn learning_rate(&self) -> f64 {
        self.optimizer.learning_rate()
    }

    /// Sets the learning rate, which must be the same on all ranks.
    pub fn set_learning_rate(&mut self, learning_rate: f64) {
        self.optimizer.set_learning_rate(learning_rate);
    }
}

impl std::fmt::Debug for ShardedAdamW {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (rank, ranks) = (self.comm.rank(), self.comm.size());
        write!(f, "ShardedAdamW(rank {rank} of {ranks}, {} elements)", self.sharded_elements())
    }
}

/// Returns the parts as one tensor of `length` elements, with zeros at the end.
fn padded(mut parts: Vec<Tensor>, bucket: &Bucket, length: usize) -> Result<Tensor> {
    let (missing, first) = (length - bucket.elements(), &bucket.vars[0]);
    if missing > 0 {
        parts.push(Tensor::zeros(missing, first.dtype(), first.device())?);
    }
    Ok(Tensor::cat(&parts, 0)?)
}
