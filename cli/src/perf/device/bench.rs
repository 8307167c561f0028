//! The measurement of one row of the table, with timed operations and a verified one.

use super::super::args::Arguments;
use super::super::bench::{Row, Timing};
use super::super::pattern::Pattern;
use super::super::room::filled;
use super::call::{call, call_in_place};
use crate::perf::op_case::OpCase;
use std::time::Instant;
use unisono::device::{Buffer, DeviceCommunicator, GpuError, Stream};
use unisono::{Communicator, Element, Result, Sum};

/// Times of the same work by two clocks.
struct Elapsed {
    /// From the first call to the end of the stream.
    host_seconds: f64,
    /// Between two events of the stream.
    gpu_seconds: f64,
}

/// Measurement of one size.
pub(super) struct Bench<'a, T: Element> {
    arguments: &'a Arguments,
    comm: &'a Communicator,
    device_comm: &'a DeviceCommunicator,
    stream: Stream,
    test: OpCase,
    count: usize,
    pattern: Pattern<T>,
    /// Input on the host, and its copy on the GPU.
    host_input: Vec<T>,
    /// Content of the output before an operation.
    poison: Vec<T>,
    input: Buffer<T>,
    /// Output with guards on either side.
    output: Buffer<T>,
    iteration: usize,
    overwritten: u64,
}

impl<'a, T: Element> Bench<'a, T> {
    pub(super) fn new(
        arguments: &'a Arguments,
        comm: &'a Communicator,
        on_gpu: &'a DeviceCommunicator,
        test: OpCase,
        size: usize,
    ) -> std::result::Result<Self, String> {
        let (rank, ranks) = (comm.rank(), comm.size());
        let count =
            test.kind.count(size, size_of::<T>(), ranks) + usize::from(arguments.mismatch && rank == 1);
        let (input, output) = test.shares(ranks, rank);
        let gpu = on_gpu.gpu();
        let length = input.max(output) * count + 2 * GUARD;
        // `-R 2` allocates symmetric memory, if its length is the same on all ranks.
        let memory = |length: usize, shares: fn((usize, usize)) -> usize| {
            let share = shares(test.shares(ranks, rank));
            let symmetric =
                arguments.register == 2 && (0..ranks).all(|peer| shares(test.shares(ranks, peer)) == share);
            let memory =
                if symmetric { on_gpu.alloc_symmetric(length) } else { gpu.alloc(length).map_err(gpu_error) };
            memory.map_err(|error| error.to_string())
        };
        Ok(Self {
            arguments,
            comm,
            device_comm: on_gpu,
            stream: gpu.stream().map_err(|error| error.to_string())?,
            test,
            count,
            pattern: Pattern::new(test, ranks, rank),
            host_input: filled(comm, T::default(), input * count)?,
            poison: filled(comm, T::from_f64(POISON), length)?,
            input: memory(input * count, |(input, _)| input)?,
            output: memory(length, |(input, output)| input.max(output))?,
            iteration: size,
            overwritten: 0,
        })
    }

    pub(super) fn run(self) -> std::result::Result<Row, String> {
        self.row().map_err(|error| error.to_string())
    }

    fn row(mut self) -> Result<Row> {
        let (kind, ranks) = (self.test.kind, self.comm.size());
        let out_of_place = self.timing(false)?;
        let in_place = kind.has_in_place().then(|| self.timing(true)).transpose()?;
        let mut touched = [self.overwritten];
        // Only rank 0 prints, so it needs the sum over all ranks.
        self.comm.all_reduce(&mut touched, Sum)?;
        Ok(Row {
            size: kind.size(self.count, size_of::<T>(), ranks),
            count: self.count,
            dtype: T::DTYPE,
            test: self.test,
            ranks,
            algorithm: if kind.collective().is_some() { self.algorithm() } else { "direct" },
            out_of_place: Some(out_of_place),
            in_place,
            out_of_bounds: touched[0],
        })
    }

    fn algorithm(&self) -> &'static str {
        self.device_comm.last_algorithm().map_or("none", |row| row.name)
    }

    /// Times back-to-back operations, and then verifies one.
    fn timing(&mut self, in_place: bool) -> Result<Timing> {
        self.batch(self.arguments.warmup, in_place)?;
        let iterations = self.arguments.iterations.unwrap_or(ITERATIONS) * self.arguments.aggregate;
        let elapsed = match self.arguments.graphs {
            0 => self.batch(iterations, in_place)?,
            graphs => self.replay_graphs(iterations, graphs, in_place)?,
        };
        let operations = (iterations * self.arguments.graphs.max(1)) as f64;
        let wrong = if self.arguments.check > 0 { Some(self.verify(in_place)?) } else { None };
        Ok(Timing {
            micros: self.arguments.reduce_time(self.comm, elapsed.host_seconds * 1e6 / operations)?,
            wrong,
            spread: None,
            flag_latency: None,
            gpu_micros: Some(self.arguments.reduce_time(self.comm, elapsed.gpu_seconds * 1e6 / operations)?),
        })
    }

    /// Runs some operations on all ranks.
    fn batch(&mut self, operations: usize, in_place: bool) -> Result<Elapsed> {
        self.timed(|bench| (0..operations).try_for_each(|_| bench.call(in_place)))
    }

    /// Replays a graph of `operations` operations `graphs` times on all ranks.
    fn replay_graphs(&mut self, operations: usize, graphs: usize, in_place: bool) -> Result<Elapsed> {
        let stream = self.stream.clone();
        let graph = stream.capture(|_| (0..operations).try_for_each(|_| self.call(in_place)))?;
        self.timed(|_| (0..graphs).try_for_each(|_| graph.launch(&stream).map_err(gpu_error)))
    }

    /// Times the work that `enqueue` enqueues, from a barrier to the end of the stream.
    fn timed(&mut self, enqueue: impl FnOnce(&mut Self) -> Result<()>) -> Result<Elapsed> {
        self.comm.barrier()?;
        let (begun, first) = (Instant::now(), self.stream.record().map_err(gpu_error)?);
        enqueue(self)?;
        let last = self.stream.record().map_err(gpu_error)?;
        self.device_comm.synchronize(&self.stream)?;
        let gpu_seconds = f64::from(first.elapsed_ms(&last).map_err(gpu_error)?) / 1e3;
        Ok(Elapsed { host_seconds: begun.elapsed().as_secs_f64(), gpu_seconds })
    }

    fn call(&mut self, in_place: bool) -> Result<()> {
        let (rank, ranks) = (self.comm.rank(), self.comm.size());
        let length = self.output.len() - 2 * GUARD;
        let results = self.test.shares(ranks, rank).1 * self.count;
        let (stream, output) = (&self.stream, &mut self.output);
        match in_place {
            true => call_in_place(&self.test, self.device_comm, stream, output, GUARD..GUARD + length),
            false => call(&self.test, self.device_comm, stream, &self.input, output, GUARD..GUARD + results),
        }
    }

    /// Returns the number of wrong elements of one operation on new data, over all ranks.
    fn verify(&mut self, in_place: bool) -> Result<u64> {
        self.iteration += 1;
        let (rank, ranks) = (self.comm.rank(), self.comm.size());
        let (input_at, output_at) = if in_place { self.test.in_place_offsets(rank) } else { (0, 0) };
        self.pattern.fill(&mut self.host_input, self.iteration);
        self.input.write(&self.stream, &self.host_input).map_err(gpu_error)?;
        self.output.write(&self.stream, &self.poison).map_err(gpu_error)?;
        if in_place {
            let input = GUARD + input_at * self.count;
            let input = input..input + self.host_input.len();
            self.output.view_mut(input).write(&self.stream, &self.host_input).map_err(gpu_error)?;
        }
        self.call(in_place)?;
        self.device_comm.synchronize(&self.stream)?;
        let mut found = self.output.to_vec(&self.stream).map_err(gpu_error)?;
        let results = GUARD + output_at * self.count
            ..GUARD + (output_at + self.test.shares(ranks, rank).1) * self.count;
        if self.arguments.corrupt
            && rank == self.test.checked_rank(ranks)
            && let Some(element) = found[results.clone()].last_mut()
        {
            *element = T::from_f64(if element.to_f64() == 0.0 { 1.0 } else { 0.0 });
        }
        let guards = found[..GUARD].iter().chain(&found[found.len() - GUARD..]);
        self.overwritten += guards.filter(|guard| **guard != T::from_f64(POISON)).count() as u64;
        let mut wrong = [self.pattern.count_wrong(&found[results], self.count, self.iteration)];
        self.comm.all_reduce(&mut wrong, Sum)?;
        Ok(wrong[0])
    }
}

fn gpu_error(error: GpuError) -> unisono::Error {
    error.into()
}

/// Number of guard elements on either side of the output.
const GUARD: usize = 64;
const POISON: f64 = 5.0;
const ITERATIONS: usize = 20;
