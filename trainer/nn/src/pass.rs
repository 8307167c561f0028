//! Forward and backward pass of a model, as modules use it.
//!
//! A pass holds all micro-batches of a step. They may enter units in any order; each has a tape of
//! its own.

mod added_sums;
mod device;
mod extensions;
mod micro_sequences;
mod tape;
mod wait_span;
mod weights_view;

pub use added_sums::{AddedSums, AddedValues};
pub use extensions::{Extension, Extensions};
pub use tape::Tape;
pub use wait_span::{WaitKind, WaitSpan, Waits};
pub use weights_view::WeightsView;

use crate::allocator::{AllocClass, Allocator, F32Vec};
use crate::batch::{Batch, TokenBatch};
use crate::device::Device;
use crate::error::Result;
use crate::ops::{Host, Ops, ValuesMut};
use crate::parameter::{ParameterId, UnitId};
use crate::step_plan::{Direction, StepPlan, Visit, Work};
use crate::strategy::Strategy;
use crate::tensor::Tensor;

/// Seeds for the random numbers of a pass. They depend on the step only, so a pass can be repeated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seeds {
    /// Seed shared by a tensor parallel group, for replicated tensors.
    pub shared: u64,
    /// Seed of each rank, for sharded tensors.
    pub per_rank: u64,
}

/// Gradient of weights that a visit left out, to be added later.
type Deferred = Box<dyn FnOnce(&mut Pass<'_>) -> Result<()> + Send>;

/// Place of a pass within a visit.
struct Place {
    /// Micro-batch that is computed.
    micro_batch: usize,
    /// True for the last micro-batch of the visit.
    ends_visit: bool,
    /// Unit whose gradients of weights are left out.
    defers_for: Option<UnitId>,
}

impl Place {
    /// Place between visits, where a call is a visit of its own.
    const BETWEEN_VISITS: Self = Self { micro_batch: 0, ends_visit: true, defers_for: None };
}

/// State of one micro-batch of a pass.
#[derive(Default)]
struct MicroBatch {
    tape: Tape,
    seeds: Seeds,
    /// Data, if it was set.
    batch: Option<Batch>,
    /// Gradients of weights that are left out so far, with their units.
    deferred: Vec<(UnitId, Deferred)>,
}

/// One or several micro-batches on their way through a model and back.
///
/// It computes in host memory unless [`Pass::set_device`] sets a GPU. The front page of this crate
/// has an example of a forward and a backward.
pub struct Pass<'a> {
    strategy: &'a mut dyn Strategy,
    micro_batches: Vec<MicroBatch>,
    place: Place,
    host: Host,
    device: Option<&'a Device>,
    /// Rows of one sequence in micro-batches without data.
    sequence: usize,
    /// Number of micro-sequences per micro-batch.
    micro_sequences: usize,
    saves_activations: bool,
    added: AddedValues,
    waits: Waits,
    extensions: Extensions,
}

impl<'a> Pass<'a> {
    /// Creates a pass of one micro-batch with the parameters of `strategy`. A matrix product uses
    /// up to `threads` threads.
    pub fn new(strategy: &'a mut dyn Strategy, memory: &Allocator, seeds: Seeds, threads: usize) -> Self {
        Self::with_micro_batches(strategy, memory, &[seeds], threads)
    }

    /// Creates a pass of one micro-batch per element of `seeds`, as [`Pass::new`] does.
    pub fn with_micro_batches(
        strategy: &'a mut dyn Strategy,
        memory: &Allocator,
        seeds: &[Seeds],
        threads: usize,
    ) -> Self {
        let micro_batch = |&seeds: &Seeds| MicroBatch { seeds, ..MicroBatch::default() };
        let micro_batches = seeds.iter().map(micro_batch).collect();
        Self {
            strategy,
            micro_batches,
            place: Place::BETWEEN_VISITS,
            host: Host { threads, memory: memory.clone() },
            device: None,
            sequence: 1,
            micro_sequences: 1,
            saves_activations: true,
            added: AddedValues::default(),
            waits: Waits::default(),
            extensions: Extensions::default(),
        }
    }

    /// Announces the visits of a step, or of a forward on its own, to the strategy.
    ///
    /// # Errors
    /// Returns the error of a collective that was under way.
    pub fn begin_step(&mut self, plan: &StepPlan) -> Result<()> {
        self.strategy.begin_step(plan)
    }

    /// Runs `body` for each micro-batch of a visit, while the weights of its unit are present.
    /// `body` gets the index of the micro-batch in the visit. Micro-sequences go back in reverse
    /// order.
    ///
    /// # Errors
    /// Returns the error of `body`, or of a collective that becomes due.
    pub fn visit(
        &mut self,
        visit: &Visit,
        mut body: impl FnMut(&mut Self, usize) -> Result<()>,
    ) -> Result<()> {
        let way = visit.work.direction();
        // Gradients of weights have no direction, because they need no weights: nothing is gathered
        // for them.
        way.map_or(Ok(()), |way| self.strategy.pre_unit(visit.unit, way))?;
        let defers_for = (visit.work == Work::InputGrads).then_some(visit.unit);
        let count = visit.micro_batches.len();
        let ended = (0..count).try_for_each(|number| {
            // Later micro-sequences add to the gradients of the keys and values of earlier ones, so
            // the last one goes back first.
            let micro_batch = if visit.work.is_backward() && self.micro_sequences > 1 {
                visit.micro_batches.end - 1 - number
            } else {
                visit.micro_batches.start + number
            };
            self.place = Place { micro_batch, ends_visit: number + 1 == count, defers_for };
            body(self, micro_batch - visit.micro_batches.start)
        });
        // The place is set back before an error returns, because calls after it are in no visit.
        self.place = Place::BETWEEN_VISITS;
        ended?;
        way.map_or(Ok(()), |way| self.strategy.post_unit(visit.unit, way))
    }

    /// Returns true if this visit leaves out gradients of weights. A module may then pass them to
    /// [`Pass::defer`].
    pub fn defers(&self) -> bool {
        self.place.defers_for.is_some()
    }

    /// Leaves `add`, which adds gradients of weights, to a later visit.
    ///
    /// # Panics
    /// Panics if [`Pass::defers`] is false.
    pub fn defer(&mut self, add: impl FnOnce(&mut Pass<'_>) -> Result<()> + Send + 'static) {
        let unit = self.place.defers_for.expect("a visit that leaves out gradients of weights");
        self.micro_batches[self.place.micro_batch].deferred.push((unit, Box::new(add)));
    }

    /// Adds the gradients of a unit's weights that were left out for the current micro-batch.
    ///
    /// # Errors
    /// Returns the error of a collective that becomes due.
    pub fn run_deferred(&mut self, unit: UnitId) -> Result<()> {
        let deferred = &mut self.micro_batches[self.place.micro_batch].deferred;
        let (due, others): (Vec<_>, Vec<_>) =
            std::mem::take(deferred).into_iter().partition(|left| left.0 == unit);
        // The others are put back before the calls, which borrow the whole pass.
        *deferred = others;
        due.into_iter().try_for_each(|(_, add)| add(self))
    }

    /// Sets the data of all micro-batches.
    ///
    /// # Panics
    /// Panics if there is not one batch per micro-batch.
    pub fn set_batches(&mut self, batches: impl IntoIterator<Item = Batch>) {
        let mut batches = batches.into_iter();
        for micro_batch in &mut self.micro_batches {
            micro_batch.batch = Some(batches.next().expect("a batch for each micro-batch"));
        }
        assert!(batches.next().is_none(), "a batch for each micro-batch");
    }

    /// Returns the data of the current micro-batch.
    ///
    /// # Panics
    /// Panics if it was not set.
    pub fn batch(&self) -> Batch {
        self.batch_of(self.place.micro_batch)
    }

    /// Returns the data of a micro-batch.
    ///
    /// # Panics
    /// Panics if it was not set.
    pub fn batch_of(&self, micro_batch: usize) -> Batch {
        self.micro_batches[micro_batch].batch.clone().expect("the data is set before forward")
    }

    /// Returns the number of micro-batches.
    pub fn count(&self) -> usize {
        self.micro_batches.len()
    }

    fn tape(&mut self) -> &mut Tape {
        &mut self.micro_batches[self.place.micro_batch].tape
    }

    /// Returns the weights of a parameter in host memory. They are complete within [`Pass::visit`]
    /// or [`Pass::unit`] of their unit. [`Pass::weights_view`] is for weights anywhere.
    pub fn weights(&self, id: ParameterId) -> &[f32] {
        self.strategy.weights(id)
    }

    /// Calls `add` with the operations of this pass and the gradient of a parameter, and reports
    /// the gradient as ready. Does nothing for a frozen parameter.
    ///
    /// # Errors
    /// Returns the error of `add`, of the GPU driver, or of a collective that becomes due.
    pub fn accumulate(
        &mut self,
        id: ParameterId,
        add: impl FnOnce(&dyn Ops, ValuesMut<'_>) -> Result<()>,
    ) -> Result<()> {
        self.add(id, add)?;
        self.grad_ready(id)
    }

    /// Reports that this micro-batch has added the gradient of one use of a parameter. The strategy
    /// learns of it after the last micro-batch of the visit.
    ///
    /// # Errors
    /// Returns the error of a collective that becomes due.
    pub fn grad_ready(&mut self, id: ParameterId) -> Result<()> {
        if !self.place.ends_visit {
            return Ok(());
        }
        if let Some((_, gradient)) = self.strategy.weights_and_gradient(id) {
            // The sum of all micro-batches of the visit is copied at once, because each copy waits
            // for the GPU.
            self.device.map_or(Ok(()), |device| device.take_gradient(id, gradient))?;
            return self.strategy.grad_ready(id);
        }
        // A strategy with buffers on the GPU has the gradient there already, so nothing is copied.
        let trains = self.strategy.device_store(id).is_some_and(|store| store.is_trainable(id));
        if trains { self.strategy.grad_ready(id) } else { Ok(()) }
    }

    /// Sets the factor of the loss in backward, 1 by default.
    pub fn set_loss_scale(&mut self, scale: f32) {
        self.added.loss_scale = scale;
    }

    /// Returns the losses and metrics that blocks add.
    pub fn added_mut(&mut self) -> &mut AddedValues {
        &mut self.added
    }

    /// Runs `body` without backward: nothing is saved and dropout is off.
    ///
    /// # Errors
    /// Returns the error of `body`.
    pub fn no_grad<R>(&mut self, body: impl FnOnce(&mut Self) -> Result<R>) -> Result<R> {
        let keeps = std::mem::replace(&mut self.saves_activations, false);
        // The flag is set back before an error returns, so that the pass can still train.
        let result = body(self);
        self.saves_activations = keeps;
        result
    }

    /// Returns true if a backward follows, which means training.
    pub fn keeps(&self) -> bool {
        self.saves_activations
    }

    /// Runs `body` while the weights of `unit` are present.
    ///
    /// # Errors
    /// Returns the error of `body`, or of a collective that becomes due.
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

    /// Returns the record of waits for other ranks.
    pub fn waits(&self) -> &Waits {
        &self.waits
    }

    /// Allocates a tensor with unspecified values.
    pub fn tensor(&self, rows: usize, columns: usize) -> Tensor {
        Tensor::new(&self.host.memory, rows, columns)
    }

    /// Allocates a tensor with unspecified values in the memory where modules compute.
    ///
    /// # Errors
    /// Returns an error of the GPU driver.
    pub fn tensor_in_place(&self, rows: usize, columns: usize) -> Result<Tensor> {
        self.device.map_or_else(|| Ok(self.tensor(rows, columns)), |device| device.tensor(rows, columns))
    }

    /// Allocates a tensor of zeros in the memory where modules compute.
    ///
    /// # Errors
    /// Returns an error of the GPU driver.
    pub fn zeros_in_place(&self, rows: usize, columns: usize) -> Result<Tensor> {
        let zeros = || Ok(Tensor::zeros(&self.host.memory, rows, columns));
        self.device.map_or_else(zeros, |device| device.tensor(rows, columns))
    }

    /// Copies host data to a tensor in the memory where modules compute.
    ///
    /// # Errors
    /// Returns an error of the GPU driver.
    pub fn tensor_from(&self, rows: usize, columns: usize, data: &[f32]) -> Result<Tensor> {
        match self.device {
            Some(device) => device.tensor_from(rows, columns, data),
            None => Ok(Tensor::from_slice(&self.host.memory, rows, columns, data)),
        }
    }

    /// Allocates activations with unspecified values.
    pub fn floats(&self, count: usize) -> F32Vec {
        self.host.memory.alloc(AllocClass::Activations, count)
    }

    /// Returns the allocator.
    pub fn memory(&self) -> &Allocator {
        &self.host.memory
    }

    /// Returns the seeds of the current micro-batch.
    pub fn seeds(&self) -> Seeds {
        self.micro_batches[self.place.micro_batch].seeds
    }

    /// Sets the number of consecutive rows that form one sequence, or one chunk of it, for
    /// micro-batches without data. The default is 1.
    pub fn set_sequence(&mut self, rows: usize) {
        self.sequence = rows;
    }

    /// Returns the number of consecutive rows that form one sequence; attention stays within it.
    /// If a sequence has several chunks, it is the length of one
    /// ([`KvSource`](crate::modules::KvSource)).
    pub fn sequence(&self) -> usize {
        let batch = self.micro_batches[self.place.micro_batch].batch.as_ref();
        let tokens = batch.and_then(|batch| batch.get::<TokenBatch>().ok());
        tokens.map_or(self.sequence, |tokens| tokens.sequence)
    }

    /// Returns the number of threads for a matrix product.
    pub fn threads(&self) -> usize {
        self.host.threads
    }

    /// Returns true if everything saved in forward has been restored, and no gradient is left out.
    pub fn is_complete(&self) -> bool {
        let mut micro_batches = self.micro_batches.iter();
        self.extensions.are_complete()
            && micro_batches.all(|micro_batch| micro_batch.tape.is_empty() && micro_batch.deferred.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::parameter::Inventory;
    use crate::strategy::LocalStrategy;

    #[test]
    fn failed_visits_leave_no_place_behind() {
        let memory = Allocator::default();
        let mut strategy = LocalStrategy::new(Inventory::default(), &memory, 0);
        let seeds = [1, 2].map(|shared| Seeds { shared, per_rank: 0 });
        let mut pass = Pass::with_micro_batches(&mut strategy, &memory, &seeds, 1);
        let visit = Visit { work: Work::InputGrads, unit: UnitId(0), micro_batches: 1..2 };
        let ended = pass.visit(&visit, |pass, _| {
            assert!(pass.defers() && pass.seeds() == seeds[1]);
            Err(Error::invalid("a failure"))
        });
        assert!(ended.is_err() && !pass.defers());
        assert_eq!(pass.seeds(), seeds[0]);
    }
}
