//! One row of the table: timed operations, and one that is verified.

use super::super::args::Arguments;
use super::super::bench::{Row, Timing};
use super::super::pattern::Pattern;
use super::super::test::Test;
use super::call::{call, call_in_place};
use std::time::Instant;
use unisono::device::{Buffer, DeviceCommunicator, GpuError, Stream};
use unisono::{Communicator, Element, Result, Sum};

/// Everything to measure one size.
pub(super) struct Bench<'a, T: Element> {
    arguments: &'a Arguments,
    comm: &'a Communicator,
    on_gpu: &'a DeviceCommunicator,
    stream: Stream,
    test: Test,
    count: usize,
    pattern: Pattern<T>,
    /// What is sent, and on the GPU.
    sent: Vec<T>,
    input: Buffer<T>,
    /// With guards on either side.
    output: Buffer<T>,
    turn: usize,
    touched: u64,
}

impl<'a, T: Element> Bench<'a, T> {
    pub(super) fn new(
        arguments: &'a Arguments,
        comm: &'a Communicator,
        on_gpu: &'a DeviceCommunicator,
        test: Test,
        size: usize,
    ) -> Result<Self> {
        let (rank, ranks) = (comm.rank(), comm.ranks());
        let count =
            test.kind.count(size, size_of::<T>(), ranks) + usize::from(arguments.mismatch && rank == 1);
        let (input, output) = test.shares(ranks, rank);
        let gpu = on_gpu.gpu();
        let length = input.max(output) * count + 2 * GUARD;
        // Lent by all ranks, where it is equally long on all.
        let memory = |length: usize, shares: fn((usize, usize)) -> usize| {
            let own = shares(test.shares(ranks, rank));
            let lent =
                arguments.register == 2 && (0..ranks).all(|peer| shares(test.shares(ranks, peer)) == own);
            if lent { on_gpu.alloc(length) } else { gpu.alloc(length).map_err(refused) }
        };
        Ok(Self {
            arguments,
            comm,
            on_gpu,
            stream: gpu.stream().map_err(refused)?,
            test,
            count,
            pattern: Pattern::new(test, ranks, rank),
            sent: vec![T::default(); input * count],
            input: memory(input * count, |(input, _)| input)?,
            output: memory(length, |(input, output)| input.max(output))?,
            turn: size,
            touched: 0,
        })
    }

    pub(super) fn run(mut self) -> Result<Row> {
        let (kind, ranks) = (self.test.kind, self.comm.ranks());
        let out_of_place = self.timing(false)?;
        let in_place = kind.has_in_place().then(|| self.timing(true)).transpose()?;
        let mut touched = [self.touched];
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
        self.on_gpu.last_algorithm().map_or("none", |row| row.name)
    }

    /// Times operations back to back; then verifies one.
    fn timing(&mut self, in_place: bool) -> Result<Timing> {
        self.batch(self.arguments.warmup, in_place)?;
        let iterations = self.arguments.iterations.unwrap_or(ITERATIONS) * self.arguments.aggregate;
        let seconds = match self.arguments.graphs {
            0 => self.batch(iterations, in_place)?,
            graphs => self.replays(iterations, graphs, in_place)? / graphs as f64,
        };
        let wrong = if self.arguments.check > 0 { Some(self.verified(in_place)?) } else { None };
        Ok(Timing {
            micros: self.arguments.over_ranks(self.comm, seconds * 1e6 / iterations as f64)?,
            wrong,
            spread: None,
            hand_over: None,
        })
    }

    /// Seconds of some operations on all ranks.
    fn batch(&mut self, operations: usize, in_place: bool) -> Result<f64> {
        self.comm.barrier()?;
        let begun = Instant::now();
        for _ in 0..operations {
            self.call(in_place)?;
        }
        self.on_gpu.synchronize(&self.stream)?;
        Ok(begun.elapsed().as_secs_f64())
    }

    /// Seconds of a graph of some operations, replayed so often on all ranks.
    fn replays(&mut self, operations: usize, graphs: usize, in_place: bool) -> Result<f64> {
        let stream = self.stream.clone();
        let graph = stream.capture(|_| (0..operations).try_for_each(|_| self.call(in_place)))?;
        self.comm.barrier()?;
        let begun = Instant::now();
        for _ in 0..graphs {
            graph.launch(&stream).map_err(refused)?;
        }
        self.on_gpu.synchronize(&stream)?;
        Ok(begun.elapsed().as_secs_f64())
    }

    fn call(&mut self, in_place: bool) -> Result<()> {
        let (rank, ranks) = (self.comm.rank(), self.comm.ranks());
        let whole = self.output.len() - 2 * GUARD;
        let results = self.test.shares(ranks, rank).1 * self.count;
        let (stream, output) = (&self.stream, &mut self.output);
        match in_place {
            true => call_in_place(&self.test, self.on_gpu, stream, output, (GUARD, whole)),
            false => call(&self.test, self.on_gpu, stream, &self.input, output, (GUARD, results)),
        }
    }

    /// Wrong elements of one operation on fresh data, over all ranks.
    fn verified(&mut self, in_place: bool) -> Result<u64> {
        self.turn += 1;
        let (rank, ranks) = (self.comm.rank(), self.comm.ranks());
        let (from, into) = if in_place { self.test.own_place(rank) } else { (0, 0) };
        self.pattern.fill(&mut self.sent, self.turn);
        let mut contents = vec![T::from_f64(POISON); self.output.len()];
        if in_place {
            contents[GUARD + from * self.count..][..self.sent.len()].copy_from_slice(&self.sent);
        }
        self.input.write(&self.stream, &self.sent).map_err(refused)?;
        self.output.write(&self.stream, &contents).map_err(refused)?;
        self.call(in_place)?;
        self.on_gpu.synchronize(&self.stream)?;
        let mut found = self.output.to_vec(&self.stream).map_err(refused)?;
        let results =
            GUARD + into * self.count..GUARD + (into + self.test.shares(ranks, rank).1) * self.count;
        if self.arguments.corrupt
            && rank == self.test.witness(ranks)
            && let Some(element) = found[results.clone()].last_mut()
        {
            *element = T::from_f64(if element.to_f64() == 0.0 { 1.0 } else { 0.0 });
        }
        let guards = found[..GUARD].iter().chain(&found[found.len() - GUARD..]);
        self.touched += guards.filter(|guard| **guard != T::from_f64(POISON)).count() as u64;
        let mut wrong = [self.pattern.wrong(&found[results], self.count, self.turn)];
        self.comm.all_reduce(&mut wrong, Sum)?;
        Ok(wrong[0])
    }
}

fn refused(error: GpuError) -> unisono::Error {
    error.into()
}

/// Elements on either side of the output that nobody may touch.
const GUARD: usize = 64;
const POISON: f64 = 5.0;
const ITERATIONS: usize = 20;
