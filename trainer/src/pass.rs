//! One way through a model and back: what modules work with.
//!
//! A pass is of one micro-batch, or of several that go breadth first: each unit computes all of them, one after the other, before the
//! next unit does (Lamy-Poirier, "Breadth-first pipeline parallelism", MLSys 2023). So the weights of a unit are needed once for all
//! of them.

use crate::allocator::{AllocClass, Allocator, F32Vec};
use crate::device::{Device, DeviceWeights};
use crate::error::{Error, Result};
use crate::parameter::{ParameterId, UnitId};
use crate::strategy::{Direction, Strategy};
use crate::tensor::Tensor;
use std::any::Any;
use std::cell::RefCell;
use std::time::{Duration, Instant};
use unisono::Communicator;
use unisono_cuda::device::compute::Compute;
use unisono_cuda::device::{GpuError, ViewMut};

/// What forward keeps for backward: last in, first out.
#[derive(Default)]
pub struct Tape(Vec<Box<dyn Any + Send>>);

impl Tape {
    /// Whether everything that was kept has been taken back.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Numbers that decide about randomness in this pass; all a function of the step, so that a pass can be repeated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seeds {
    /// Equal on all ranks of a tensor-parallel group: for what they all hold.
    pub shared: u64,
    /// Different on each of them: for what is cut between them.
    pub per_rank: u64,
}

/// What each micro-batch of a pass has of its own.
struct MicroBatch {
    tape: Tape,
    seeds: Seeds,
}

/// Waiting for other ranks within a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitSpan {
    /// What for.
    pub name: &'static str,
    /// Since when.
    pub start: Instant,
    /// How long.
    pub time: Duration,
}

/// Micro-batches on their way through a model and back.
pub struct Pass<'a> {
    strategy: &'a mut dyn Strategy,
    micro_batches: Vec<MicroBatch>,
    /// Which of them is worked on.
    current: usize,
    memory: Allocator,
    threads: usize,
    sequence: usize,
    sequence_group: Option<Communicator>,
    device: Option<&'a Device>,
    saves_activations: bool,
    wait_spans: RefCell<Vec<WaitSpan>>,
}

impl<'a> Pass<'a> {
    /// A pass of one micro-batch over parameters that `strategy` keeps; `threads` may work on one matrix product.
    pub fn new(strategy: &'a mut dyn Strategy, memory: &Allocator, seeds: Seeds, threads: usize) -> Self {
        Self::breadth_first(strategy, memory, &[seeds], threads)
    }

    /// A pass of as many micro-batches as there are `seeds`.
    pub fn breadth_first(
        strategy: &'a mut dyn Strategy,
        memory: &Allocator,
        seeds: &[Seeds],
        threads: usize,
    ) -> Self {
        let micro_batch = |&seeds: &Seeds| MicroBatch { tape: Tape::default(), seeds };
        let micro_batches = seeds.iter().map(micro_batch).collect();
        Self {
            strategy,
            micro_batches,
            current: 0,
            memory: memory.clone(),
            threads,
            sequence: 1,
            sequence_group: None,
            device: None,
            saves_activations: true,
            wait_spans: RefCell::default(),
        }
    }

    /// Runs `body` for each micro-batch with its value, one after the other.
    ///
    /// # Errors
    /// Of `body`.
    ///
    /// # Panics
    /// If there is not one value for each.
    pub fn each<T, R>(
        &mut self,
        values: Vec<T>,
        mut body: impl FnMut(&mut Self, T) -> Result<R>,
    ) -> Result<Vec<R>> {
        assert_eq!(values.len(), self.count(), "a value for each micro-batch");
        let numbered = values.into_iter().enumerate();
        let with = |(at, value)| {
            self.current = at;
            body(self, value)
        };
        numbered.map(with).collect()
    }

    /// How many micro-batches there are.
    pub fn count(&self) -> usize {
        self.micro_batches.len()
    }

    fn tape(&mut self) -> &mut Tape {
        &mut self.micro_batches[self.current].tape
    }

    /// The weights of a parameter.
    pub fn weights(&self, id: ParameterId) -> &[f32] {
        self.strategy.weights(id)
    }

    /// Lets `add` add to the gradient of a parameter, beside its weights, and says that this was all. Does nothing for a frozen
    /// one.
    ///
    /// # Errors
    /// Of collectives that become due.
    pub fn accumulate(&mut self, id: ParameterId, add: impl FnOnce(&[f32], &mut [f32])) -> Result<()> {
        self.add(id, add);
        self.grad_ready(id)
    }

    /// Lets `add` add a part of what this micro-batch adds to the gradient of a parameter; [`Pass::ready`] follows the last part.
    pub fn add(&mut self, id: ParameterId, add: impl FnOnce(&[f32], &mut [f32])) {
        if let Some((weights, gradient)) = self.strategy.weights_and_gradient(id) {
            add(weights, gradient);
        }
    }

    /// Says that this micro-batch added all that it adds to the gradient of a parameter by one use. It is ready when the
    /// last one did.
    ///
    /// # Errors
    /// Of collectives that become due.
    pub fn grad_ready(&mut self, id: ParameterId) -> Result<()> {
        if self.current + 1 < self.count() {
            return Ok(());
        }
        if let Some((_, gradient)) = self.strategy.weights_and_gradient(id) {
            self.device.map_or(Ok(()), |device| device.take_gradient(id, gradient))?;
            return self.strategy.grad_ready(id);
        }
        let trains = self.strategy.device_store().is_some_and(|store| store.inventory[id].trainable);
        if trains { self.strategy.grad_ready(id) } else { Ok(()) }
    }

    /// Lets a GPU compute: tensors are then in its memory, but for what comes from the host and goes back there.
    pub fn set_device(&mut self, device: Option<&'a Device>) {
        self.device = device;
    }

    /// The GPU that computes, if one does.
    pub fn device(&self) -> Option<&'a Device> {
        self.device
    }

    /// An error if a GPU computes: for what has no kernels.
    ///
    /// # Errors
    /// [`Error::Unavailable`] names it.
    pub fn expect_host(&self, what: &str) -> Result<()> {
        match self.device {
            Some(_) => Err(Error::Unsupported(format!("{what} on a GPU: not part of this build"))),
            None => Ok(()),
        }
    }

    /// The weights of a parameter in memory of the GPU.
    ///
    /// # Errors
    /// Of the driver.
    pub fn weights_on(&self, device: &Device, id: ParameterId) -> Result<DeviceWeights<'_>> {
        match self.strategy.device_store() {
            Some(store) => Ok(DeviceWeights::Shared(store.device_weights(id))),
            None => device.weights(id, self.strategy.weights(id)).map(DeviceWeights::Copied),
        }
    }

    /// As [`Pass::accumulate`], in memory of the GPU.
    ///
    /// # Errors
    /// Of the driver, and of collectives that become due.
    pub fn accumulate_on(
        &mut self,
        device: &Device,
        id: ParameterId,
        add: impl FnOnce(&Compute, ViewMut<'_, f32>) -> std::result::Result<(), GpuError>,
    ) -> Result<()> {
        if let Some(store) = self.strategy.device_store_mut() {
            let gradient = store.device_gradient(id)?;
            gradient.map_or(Ok(()), |gradient| add(device.compute(), gradient))?;
        } else if let Some((_, gradient)) = self.strategy.weights_and_gradient(id) {
            device.with_gradient(id, gradient.len(), add)?;
        }
        self.grad_ready(id)
    }

    /// Keeps `value` for backward, if there will be one.
    pub fn save<T: Send + 'static>(&mut self, value: T) {
        if self.saves_activations {
            self.tape().0.push(Box::new(value));
        }
    }

    /// Takes back what was saved last.
    ///
    /// # Panics
    /// If that was of another type: a module that does not take back what it saved.
    pub fn restore<T: Send + 'static>(&mut self) -> T {
        let saved = self.tape().0.pop().expect("backward follows forward");
        *saved.downcast().expect("modules take back what they saved, in reverse order")
    }

    /// Runs `body` with an empty tape; what it saved comes back beside its result.
    ///
    /// # Errors
    /// Of `body`.
    pub fn with_new_tape<R>(&mut self, body: impl FnOnce(&mut Self) -> Result<R>) -> Result<(R, Tape)> {
        let tape = std::mem::take(self.tape());
        let result = body(self);
        let aside = std::mem::replace(self.tape(), tape);
        Ok((result?, aside))
    }

    /// Puts what was kept aside on top of what is kept.
    pub fn restore_tape(&mut self, tape: Tape) {
        self.tape().0.extend(tape.0);
    }

    /// Runs `body` without a way back: nothing is kept, nothing dropped out.
    ///
    /// # Errors
    /// Of `body`.
    pub fn no_grad<R>(&mut self, body: impl FnOnce(&mut Self) -> Result<R>) -> Result<R> {
        let keeps = std::mem::replace(&mut self.saves_activations, false);
        let result = body(self);
        self.saves_activations = keeps;
        result
    }

    /// Whether there will be a way back: whether this is training.
    pub fn keeps(&self) -> bool {
        self.saves_activations
    }

    /// Runs `body` while the weights of `unit` are there.
    ///
    /// # Errors
    /// Of `body`, and of collectives that become due.
    pub fn unit<R>(
        &mut self,
        unit: UnitId,
        way: Direction,
        body: impl FnOnce(&mut Self) -> Result<R>,
    ) -> Result<R> {
        self.strategy.pre_unit(unit, way)?;
        let result = body(self)?;
        self.strategy.post_unit(unit, way)?;
        Ok(result)
    }

    /// Runs what must wait for other ranks before the layer can go on, and notes how long that takes.
    pub fn timed_wait<R>(&self, name: &'static str, body: impl FnOnce() -> R) -> R {
        let start = Instant::now();
        let result = body();
        self.wait_spans.borrow_mut().push(WaitSpan { name, start, time: start.elapsed() });
        result
    }

    /// Every wait for other ranks within layers, since this was last asked.
    pub fn take_waits(&mut self) -> Vec<WaitSpan> {
        self.wait_spans.take()
    }

    /// A tensor of numbers that mean nothing yet.
    pub fn tensor(&self, rows: usize, columns: usize) -> Tensor {
        Tensor::new(&self.memory, rows, columns)
    }

    /// A tensor of numbers that mean nothing yet, where modules compute.
    ///
    /// # Errors
    /// Of the driver of a GPU.
    pub fn tensor_in_place(&self, rows: usize, columns: usize) -> Result<Tensor> {
        self.device.map_or_else(|| Ok(self.tensor(rows, columns)), |device| device.tensor(rows, columns))
    }

    /// A tensor of numbers that the host has, where modules compute.
    ///
    /// # Errors
    /// Of the driver of a GPU.
    pub fn tensor_from(&self, rows: usize, columns: usize, data: &[f32]) -> Result<Tensor> {
        match self.device {
            Some(device) => device.tensor_from(rows, columns, data),
            None => Ok(Tensor::from_slice(&self.memory, rows, columns, data)),
        }
    }

    /// Room for activations: numbers that mean nothing yet.
    pub fn floats(&self, count: usize) -> F32Vec {
        self.memory.alloc(AllocClass::Activations, count)
    }

    /// Where storage comes from.
    pub fn memory(&self) -> &Allocator {
        &self.memory
    }

    /// What decides about randomness.
    pub fn seeds(&self) -> Seeds {
        self.micro_batches[self.current].seeds
    }

    /// Says how many rows, one after another, are one sequence, or this rank's chunk of it.
    pub fn set_sequence(&mut self, rows: usize) {
        self.sequence = rows;
    }

    /// How many rows, one after another, are one sequence: attention stays within it. If there are [`Pass::chunks`], it is
    /// that of the rows with the same number at all of those ranks.
    pub fn sequence(&self) -> usize {
        self.sequence
    }

    /// Says that `ranks` have chunks of the same sequences, each as long as the others, in the order of their ranks:
    /// sequence-data parallelism.
    ///
    /// Each of the S ranks computes the mean loss of its own tokens, and in backward the gradient of the *sum* of all S means along
    /// the ways that lead through itself: attention adds up what all of them have of the gradients of keys and values. The mean of
    /// those gradients over the S ranks is the gradient of the mean loss of whole sequences. So gradients and losses are averaged
    /// over chunks as they are over samples: over all data ranks alike.
    pub fn set_sequence_group(&mut self, ranks: Option<&Communicator>) {
        self.sequence_group = ranks.cloned();
    }

    /// The ranks that have the chunks of each sequence; none where it is whole.
    pub fn sequence_group(&self) -> Option<&Communicator> {
        self.sequence_group.as_ref()
    }

    /// Place in its sequence of the first row that this rank has of it.
    pub fn position_offset(&self) -> usize {
        self.sequence_group().map_or(0, |ranks| ranks.rank() * self.sequence)
    }

    /// How many threads may work on one matrix product.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Whether everything that forward kept has been taken back.
    pub fn is_complete(&self) -> bool {
        self.micro_batches.iter().all(|micro_batch| micro_batch.tape.is_empty())
    }
}
