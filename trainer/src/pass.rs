//! One way through a model and back: what modules work with.

use crate::error::Result;
use crate::memory::{Class, Floats, Memory};
use crate::parameter::{ParameterId, UnitId};
use crate::strategy::{Strategy, Way};
use crate::tensor::Tensor;
use std::any::Any;
use std::cell::RefCell;
use std::time::{Duration, Instant};

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
    pub split: u64,
}

/// Waiting for other ranks within a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// What for.
    pub name: &'static str,
    /// Since when.
    pub start: Instant,
    /// How long.
    pub time: Duration,
}

/// One micro-batch on its way through a model and back.
pub struct Pass<'a> {
    strategy: &'a mut dyn Strategy,
    tape: Tape,
    memory: Memory,
    seeds: Seeds,
    threads: usize,
    sequence: usize,
    keeps: bool,
    waits: RefCell<Vec<Wait>>,
}

impl<'a> Pass<'a> {
    /// A pass over parameters that `strategy` keeps; `threads` may work on one matrix product.
    pub fn new(strategy: &'a mut dyn Strategy, memory: &Memory, seeds: Seeds, threads: usize) -> Self {
        let (tape, memory) = (Tape::default(), memory.clone());
        Self { strategy, tape, memory, seeds, threads, sequence: 1, keeps: true, waits: RefCell::default() }
    }

    /// The weights of a parameter.
    pub fn weights(&self, id: ParameterId) -> &[f32] {
        self.strategy.weights(id)
    }

    /// Lets `add` add to the gradient of a parameter, beside its weights, and says that it is ready. Does
    /// nothing for a frozen one.
    ///
    /// # Errors
    /// Of collectives that become due.
    pub fn accumulate(&mut self, id: ParameterId, add: impl FnOnce(&[f32], &mut [f32])) -> Result<()> {
        let Some((weights, gradient)) = self.strategy.gradient(id) else { return Ok(()) };
        add(weights, gradient);
        self.strategy.ready(id)
    }

    /// Keeps `value` for backward, if there will be one.
    pub fn save<T: Send + 'static>(&mut self, value: T) {
        if self.keeps {
            self.tape.0.push(Box::new(value));
        }
    }

    /// Takes back what was saved last.
    ///
    /// # Panics
    /// If that was of another type: a module that does not take back what it saved.
    pub fn restore<T: Send + 'static>(&mut self) -> T {
        let saved = self.tape.0.pop().expect("backward follows forward");
        *saved.downcast().expect("modules take back what they saved, in reverse order")
    }

    /// Runs `body` with an empty tape; what it saved comes back beside its result.
    ///
    /// # Errors
    /// Of `body`.
    pub fn aside<R>(&mut self, body: impl FnOnce(&mut Self) -> Result<R>) -> Result<(R, Tape)> {
        let tape = std::mem::take(&mut self.tape);
        let result = body(self);
        let aside = std::mem::replace(&mut self.tape, tape);
        Ok((result?, aside))
    }

    /// Puts what was kept aside on top of what is kept.
    pub fn resume(&mut self, tape: Tape) {
        self.tape.0.extend(tape.0);
    }

    /// Runs `body` without a way back: nothing is kept, nothing dropped out.
    ///
    /// # Errors
    /// Of `body`.
    pub fn infer<R>(&mut self, body: impl FnOnce(&mut Self) -> Result<R>) -> Result<R> {
        let keeps = std::mem::replace(&mut self.keeps, false);
        let result = body(self);
        self.keeps = keeps;
        result
    }

    /// Whether there will be a way back: whether this is training.
    pub fn keeps(&self) -> bool {
        self.keeps
    }

    /// Runs `body` while the weights of `unit` are there.
    ///
    /// # Errors
    /// Of `body`, and of collectives that become due.
    pub fn unit<R>(
        &mut self,
        unit: UnitId,
        way: Way,
        body: impl FnOnce(&mut Self) -> Result<R>,
    ) -> Result<R> {
        self.strategy.need(unit, way)?;
        let result = body(self)?;
        self.strategy.done(unit, way)?;
        Ok(result)
    }

    /// Runs what must wait for other ranks before the layer can go on, and notes how long that takes.
    pub fn wait<R>(&self, name: &'static str, body: impl FnOnce() -> R) -> R {
        let start = Instant::now();
        let result = body();
        self.waits.borrow_mut().push(Wait { name, start, time: start.elapsed() });
        result
    }

    /// Every wait for other ranks within layers, since this was last asked.
    pub fn waits(&mut self) -> Vec<Wait> {
        self.waits.take()
    }

    /// A tensor of numbers that mean nothing yet.
    pub fn tensor(&self, rows: usize, columns: usize) -> Tensor {
        Tensor::new(&self.memory, rows, columns)
    }

    /// Room for activations: numbers that mean nothing yet.
    pub fn floats(&self, count: usize) -> Floats {
        self.memory.take(Class::Activations, count)
    }

    /// Where storage comes from.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// What decides about randomness.
    pub fn seeds(&self) -> Seeds {
        self.seeds
    }

    /// Says how many rows, one after another, are one sequence.
    pub fn set_sequence(&mut self, rows: usize) {
        self.sequence = rows;
    }

    /// How many rows, one after another, are one sequence: attention stays within it.
    pub fn sequence(&self) -> usize {
        self.sequence
    }

    /// How many threads may work on one matrix product.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Whether everything that forward kept has been taken back.
    pub fn is_complete(&self) -> bool {
        self.tape.is_empty()
    }
}
