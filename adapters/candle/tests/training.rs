//! Training on several ranks takes the steps of one process that has all batches.

use candle_core::{DType, Device, Tensor, Var};
use candle_nn::{AdamW, Module, Optimizer, ParamsAdamW, VarBuilder, VarMap};
use unisono::Communicator;
use unisono_candle::{DataParallel, Error, Params, Result, ShardedAdamW};

const ROWS: usize = 12;
const STEPS: usize = 30;
/// Elements of the model, which neither 2 nor 3 ranks can share equally.
const ELEMENTS: usize = 5 * 7 + 7 + 7 * 2 + 2 + 1;

/// A network of two layers and a scalar factor.
struct Network {
    map: VarMap,
    first: candle_nn::Linear,
    second: candle_nn::Linear,
    factor: Tensor,
}

impl Network {
    /// Builds the network with numbers that depend on `seed` only.
    fn new(seed: u64) -> Result<Self> {
        let map = VarMap::new();
        let builder = VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu);
        let first = candle_nn::linear(5, 7, builder.pp("first"))?;
        let second = candle_nn::linear(7, 2, builder.pp("second"))?;
        let factor = builder.get_with_hints((), "factor", candle_nn::init::ONE)?;
        for (number, var) in Params::from(&map).vars().iter().enumerate() {
            var.set(&numbers(seed + number as u64, var.elem_count())?.reshape(var.shape())?)?;
        }
        Ok(Self { map, first, second, factor })
    }

    fn loss(&self, inputs: &Tensor, targets: &Tensor) -> Result<Tensor> {
        let hidden = self.first.forward(inputs)?.tanh()?;
        let outputs = self.second.forward(&hidden)?.broadcast_mul(&self.factor)?;
        Ok(candle_nn::loss::mse(&outputs, targets)?)
    }

    fn parameters(&self) -> Result<Vec<f32>> {
        let params = Params::from(&self.map);
        let values = params.vars().iter().map(|var| var.flatten_all()?.to_vec1::<f32>());
        Ok(values.collect::<candle_core::Result<Vec<_>>>()?.concat())
    }
}

/// Returns pseudo-random numbers from -1 to 1, the same for the same seed.
fn numbers(seed: u64, count: usize) -> Result<Tensor> {
    let mut state = (seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    let values: Vec<f32> = (0..count).map(|_| next()).collect();
    Ok(Tensor::from_vec(values, count, &Device::Cpu)?)
}

/// Returns the rows of one step that belong to a rank.
fn batch(step: usize, rank: usize, ranks: usize) -> Result<(Tensor, Tensor)> {
    let rows = ROWS / ranks;
    let part = |seed: usize, width: usize| -> Result<Tensor> {
        let batch = numbers((seed + step) as u64, ROWS * width)?.reshape((ROWS, width))?;
        Ok(batch.narrow(0, rank * rows, rows)?)
    };
    Ok((part(1000, 5)?, part(2000, 2)?))
}

fn adamw() -> ParamsAdamW {
    ParamsAdamW { lr: 0.02, weight_decay: 0.05, ..ParamsAdamW::default() }
}

/// Losses of all steps, and the parameters after the last one.
type History = (Vec<f32>, Vec<f32>);

/// Trains one network in one process on all rows.
fn train_alone() -> Result<History> {
    let network = Network::new(0)?;
    let mut optimizer = AdamW::new(Params::from(&network.map).vars().to_vec(), adamw())?;
    let mut losses = Vec::new();
    for step in 0..STEPS {
        let (inputs, targets) = batch(step, 0, 1)?;
        let loss = network.loss(&inputs, &targets)?;
        losses.push(loss.to_scalar::<f32>()?);
        optimizer.backward_step(&loss)?;
    }
    Ok((losses, network.parameters()?))
}

/// The two ways to train on several ranks.
#[derive(Clone, Copy)]
enum Way {
    Averaged { bucket_bytes: usize },
    Sharded { bucket_bytes: usize },
}

/// Takes a step with the gradients of a loss.
type Step = Box<dyn FnMut(&Tensor) -> Result<()>>;

/// Trains on the rows of one rank. Returns the losses of all rows.
fn train_rank(comm: &Communicator, way: Way) -> Result<History> {
    // Rank 0 gives its parameters to the others.
    let network = Network::new(10 * comm.rank() as u64)?;
    let mut losses = Vec::new();
    let mut step: Step = match way {
        Way::Averaged { bucket_bytes } => {
            let parallel = DataParallel::new(comm, &network.map)?.with_bucket_bytes(bucket_bytes);
            let mut optimizer = AdamW::new(Params::from(&network.map).vars().to_vec(), adamw())?;
            Box::new(move |loss| Ok(optimizer.step(&parallel.backward(loss)?)?))
        }
        Way::Sharded { bucket_bytes } => {
            let mut optimizer = ShardedAdamW::with_bucket_bytes(comm, &network.map, adamw(), bucket_bytes)?;
            assert!(optimizer.sharded_elements() < ELEMENTS, "{optimizer:?}");
            Box::new(move |loss| optimizer.backward_step(loss))
        }
    };
    for number in 0..STEPS {
        let (inputs, targets) = batch(number, comm.rank(), comm.size())?;
        let loss = network.loss(&inputs, &targets)?;
        let mut mean = [loss.to_scalar::<f32>()?];
        comm.all_reduce(&mut mean, unisono::Avg)?;
        losses.extend(mean);
        step(&loss)?;
    }
    Ok((losses, network.parameters()?))
}

/// Runs `body` on ranks that are threads and returns the results by rank.
fn on_ranks<R: Send>(ranks: usize, body: impl Fn(&Communicator) -> Result<R> + Sync) -> Vec<R> {
    let (comms, body) = (Communicator::local(ranks).expect("memory for the links"), &body);
    std::thread::scope(|scope| {
        let start = |comm| scope.spawn(move || body(&comm).unwrap_or_else(|error| panic!("{error}")));
        let threads: Vec<_> = comms.into_iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank panicked")).collect()
    })
}

fn assert_near(found: &[f32], wanted: &[f32]) {
    assert_eq!(found.len(), wanted.len());
    for (index, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        assert!((found - wanted).abs() <= 2e-4 * wanted.abs().max(0.1), "{index}: {found}, not {wanted}");
    }
}

#[test]
fn averaged_losses_equal_those_of_one_process() {
    let (losses, parameters) = train_alone().unwrap();
    assert!(losses[STEPS - 1] < losses[0], "the network learns: {losses:?}");
    for ranks in [1, 2, 3] {
        for (found, end) in on_ranks(ranks, |comm| train_rank(comm, Way::Averaged { bucket_bytes: 64 })) {
            assert_near(&found, &losses);
            assert_near(&end, &parameters);
        }
    }
}

#[test]
fn sharded_steps_equal_averaged_steps_bitwise() {
    for ranks in [2, 3] {
        let averaged = on_ranks(ranks, |comm| train_rank(comm, Way::Averaged { bucket_bytes: 1 << 20 }));
        for bucket_bytes in [1, 100, 1 << 20] {
            let sharded = on_ranks(ranks, |comm| train_rank(comm, Way::Sharded { bucket_bytes }));
            assert_eq!(sharded, averaged, "{ranks} ranks, buckets of {bucket_bytes} bytes");
        }
    }
}

#[test]
fn state_is_divided_between_ranks() {
    for found in on_ranks(3, |comm| {
        let network = Network::new(0)?;
        Ok(ShardedAdamW::new(comm, &network.map, adamw())?.sharded_elements())
    }) {
        assert_eq!(found, ELEMENTS.div_ceil(3));
    }
}

#[test]
fn gradients_of_every_float_type_are_averaged() {
    for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
        on_ranks(2, |comm| {
            let var = Var::zeros((2, 3), dtype, &Device::Cpu)?;
            let parallel = DataParallel::new(comm, vec![var.clone()])?;
            let loss = (var.as_tensor() * (4.0 * comm.rank() as f64))?.sum_all()?;
            let mean = parallel.backward(&loss)?.get(&var).expect("a gradient").to_dtype(DType::F32)?;
            assert_eq!(mean.flatten_all()?.to_vec1::<f32>()?, [2.0; 6]);
            Ok(())
        });
    }
}

#[test]
fn missing_gradients_count_as_zeros() {
    on_ranks(2, |comm| {
        let vars: Vec<Var> =
            (0..3).map(|_| Var::zeros(2, DType::F32, &Device::Cpu)).collect::<candle_core::Result<_>>()?;
        let parallel = DataParallel::new(comm, vars.clone())?;
        let gradients = parallel.backward(&vars[comm.rank()].sum_all()?)?;
        for var in &vars[..2] {
            assert_eq!(gradients.get(var).expect("a gradient").to_vec1::<f32>()?, [0.5; 2]);
        }
        assert!(gradients.get(&vars[2]).is_none(), "no rank has this gradient");
        Ok(())
    });
}

#[test]
fn different_models_are_refused_on_every_rank() {
    on_ranks(3, |comm| {
        let shape = if comm.rank() == 2 { (2, 3) } else { (3, 2) };
        let var = Var::zeros(shape, DType::F32, &Device::Cpu)?;
        let error = DataParallel::new(comm, vec![var]).expect_err("shapes differ");
        assert!(matches!(error, Error::DifferentModels { other: 2, .. }), "{error}");
        Ok(())
    });
}

#[test]
fn unsupported_types_are_refused() {
    on_ranks(2, |comm| {
        let var = Var::zeros(4, DType::F8E4M3, &Device::Cpu)?;
        let error = DataParallel::new(comm, vec![var]).expect_err("no collective");
        assert!(matches!(error, Error::UnsupportedDType { dtype: DType::F8E4M3, .. }), "{error}");
        Ok(())
    });
}
