//! The measurement of one row of the table, with guarded buffers, and timed and verified
//! iterations.

mod guarded_buffer;
mod samples;

use super::args::Arguments;
use super::pattern::Pattern;
use crate::perf::bench::guarded_buffer::GuardedBuffer;
use crate::perf::op_case::{OpCase, OpKind};
use crate::perf::roofline::Roofline;
use std::time::Instant;
use unisono::{Communicator, Element, Result, Sum};

/// Results of one row.
pub(super) struct Row {
    pub(super) size: usize,
    pub(super) count: usize,
    pub(super) dtype: unisono::DType,
    pub(super) test: OpCase,
    pub(super) ranks: usize,
    pub(super) algorithm: &'static str,
    /// Results out of place. They are not measured if samples are taken of an operation that exists
    /// only in place.
    pub(super) out_of_place: Option<Timing>,
    pub(super) in_place: Option<Timing>,
    pub(super) out_of_bounds: u64,
}

/// Results of one half of a row, out of place or in place.
#[derive(Clone, Copy, Default)]
pub(super) struct Timing {
    /// Microseconds of one operation.
    pub(super) micros: f64,
    pub(super) wrong: Option<u64>,
    /// Times of single operations in microseconds: minimum, maximum, median, 99th percentile and
    /// coefficient of variation in percent.
    pub(super) spread: Option<Spread>,
    /// One-way flag latency between the cores of two ranks, in microseconds.
    pub(super) flag_latency: Option<f64>,
    /// Microseconds of one operation between two events of the rank's stream.
    pub(super) gpu_micros: Option<f64>,
}

#[derive(Clone, Copy, Default)]
pub(super) struct Spread {
    pub(super) min: f64,
    pub(super) max: f64,
    pub(super) p50: f64,
    pub(super) p99: f64,
    pub(super) cv: f64,
}

/// Measurement of one size.
pub(super) struct Bench<'a, T> {
    arguments: &'a Arguments,
    comm: &'a Communicator,
    test: OpCase,
    count: usize,
    pattern: Pattern<T>,
    input: GuardedBuffer<T>,
    output: GuardedBuffer<T>,
    /// Changes the data from one verified iteration to the next.
    iteration: usize,
    /// Name of the algorithm that ran.
    algorithm: &'static str,
}

impl Row {
    /// Returns the timing of the row: out of place if that was measured, else in place.
    pub(super) fn timing(&self) -> Timing {
        self.out_of_place.or(self.in_place).unwrap_or_default()
    }

    /// Returns the least time of this row by the roofline, in microseconds.
    pub(super) fn roofline_micros(&self, roofline: &Roofline) -> f64 {
        roofline.min_micros(self.test.kind, self.size, self.ranks, self.out_of_place.is_none())
    }
}

impl<'a, T: Element> Bench<'a, T> {
    pub(super) fn new(
        arguments: &'a Arguments,
        comm: &'a Communicator,
        test: OpCase,
        size: usize,
    ) -> std::result::Result<Self, String> {
        let (rank, ranks) = (comm.rank(), comm.size());
        let mut count = test.kind.count(size, size_of::<T>(), ranks);
        if arguments.mismatch && rank == 1 {
            count += 1;
        }
        let (input, output) = test.shares(ranks, rank);
        let in_place = input.max(output) * count;
        Ok(Self {
            arguments,
            comm,
            test,
            count,
            pattern: Pattern::new(test, ranks, rank),
            input: GuardedBuffer::new(arguments, comm, input * count)?,
            output: GuardedBuffer::new(arguments, comm, in_place)?,
            iteration: size,
            algorithm: "direct",
        })
    }

    pub(super) fn run(self) -> std::result::Result<Row, String> {
        self.row().map_err(|error| error.to_string())
    }

    fn row(mut self) -> Result<Row> {
        let (kind, ranks, element) = (self.test.kind, self.comm.size(), size_of::<T>());
        let size = kind.size(self.count, element, ranks);
        let (out_of_place, in_place) = self.timings()?;
        let touched = [self.input.count_overwritten() + self.output.count_overwritten()];
        Ok(Row {
            size,
            count: self.count,
            dtype: T::DTYPE,
            test: self.test,
            ranks,
            algorithm: self.algorithm,
            out_of_place,
            in_place,
            out_of_bounds: self.sum(touched)?[0],
        })
    }

    /// Measures the operation out of place. If it was requested and exists, also measures the
    /// operation in place.
    fn timings(&mut self) -> Result<(Option<Timing>, Option<Timing>)> {
        if let Some(milliseconds) = self.arguments.samples {
            let timing = Some(self.samples(milliseconds as f64 / 1e3)?);
            return Ok(if self.is_sampled_in_place() { (None, timing) } else { (timing, None) });
        }
        let iterations = self.iterations()?;
        let out_of_place = self.timing(iterations, false)?;
        let in_place = self.test.kind.has_in_place().then(|| self.timing(iterations, true)).transpose()?;
        Ok((Some(out_of_place), in_place))
    }

    /// Records the algorithm of the last call.
    fn record_algorithm(&mut self) -> Result<()> {
        if self.test.kind.collective().is_some() {
            self.algorithm = self.comm.last_algorithm()?.map_or("direct", |algorithm| algorithm.name);
        }
        Ok(())
    }

    /// Returns the number of timed iterations, which rank 0 decides for all ranks.
    fn iterations(&mut self) -> Result<usize> {
        self.fill(false);
        for _ in 0..self.arguments.warmup {
            self.call(false)?;
        }
        let begun = Instant::now();
        self.call(false)?;
        self.call(false)?;
        let each = begun.elapsed().as_secs_f64() / 2.0;
        self.record_algorithm()?;
        let wanted = (TIME_PER_SIZE_SECONDS / each.max(1e-9)) as u64;
        // Ranks measure different times, and all must make the same number of calls.
        let mut iterations = [wanted.clamp(ITERATIONS_MIN, ITERATIONS_MAX)];
        self.comm.broadcast(&mut iterations, 0)?;
        Ok(self.arguments.iterations.unwrap_or(iterations[0] as usize))
    }

    /// Times the iterations in two halves and verifies the result of each half.
    ///
    /// If the result of one operation is the input of the next, the last operation of each half
    /// starts from fresh inputs.
    fn timing(&mut self, iterations: usize, in_place: bool) -> Result<Timing> {
        let consumes = in_place && self.test.kind.overwrites_input();
        let (mut seconds, mut wrong) = (0.0, 0);
        let operations = iterations * self.arguments.aggregate;
        let halves = [operations / 2, operations - operations / 2];
        for half in halves.into_iter().filter(|&half| half > 0) {
            if consumes && half > 1 {
                // Zeros stay zeros however often they are reduced in place; other values would
                // overflow.
                self.output.as_mut_slice().fill(T::default());
                seconds += self.batch(half - 1, in_place)?;
            }
            self.fill(in_place);
            seconds += self.batch(if consumes { 1 } else { half }, in_place)?;
            wrong += if self.arguments.check > 0 { self.verify(in_place) } else { 0 };
        }
        let wrong = if self.arguments.check > 0 { Some(self.sum([wrong])?[0]) } else { None };
        let micros = self.arguments.reduce_time(self.comm, seconds * 1e6 / operations as f64)?;
        let spread = self.arguments.per_iteration || self.arguments.json.is_some();
        let spread = if spread { Some(self.spread(iterations.min(SAMPLES_MAX), in_place)?) } else { None };
        Ok(Timing { micros, wrong, spread, flag_latency: None, gpu_micros: None })
    }

    /// Returns the time of several back-to-back operations, in seconds.
    fn batch(&mut self, operations: usize, in_place: bool) -> Result<f64> {
        // All ranks start together, so that no rank's clock counts the time for which another one
        // is late.
        self.comm.barrier()?;
        let begun = Instant::now();
        if self.arguments.blocking == 0 {
            let (test, input, output) = (self.test, &self.input, &mut self.output);
            self.comm.scope(|scope| {
                let started = scope.spawn(move |comm| {
                    (0..operations).try_for_each(|_| call(&test, comm, input, output, in_place))
                });
                started.wait()
            })?;
        } else {
            for _ in 0..operations {
                self.call(in_place)?;
            }
        }
        Ok(begun.elapsed().as_secs_f64())
    }

    fn spread(&mut self, samples: usize, in_place: bool) -> Result<Spread> {
        self.output.as_mut_slice().fill(T::default());
        self.comm.barrier()?;
        let mut times = Vec::with_capacity(samples);
        for _ in 0..samples {
            let begun = Instant::now();
            self.call(in_place)?;
            times.push(begun.elapsed().as_secs_f64() * 1e6);
        }
        times.sort_by(f64::total_cmp);
        let mean = times.iter().sum::<f64>() / samples as f64;
        let variance = times.iter().map(|time| (time - mean).powi(2)).sum::<f64>() / samples as f64;
        let quantile = |share: f64| times[((samples - 1) as f64 * share).round() as usize];
        Ok(Spread {
            min: times[0],
            max: times[samples - 1],
            p50: quantile(0.5),
            p99: quantile(0.99),
            cv: variance.sqrt() / mean * 100.0,
        })
    }

    fn call(&mut self, in_place: bool) -> Result<()> {
        call(&self.test, self.comm, &self.input, &mut self.output, in_place)
    }

    /// Fills the inputs with new data, and the places of results with poison.
    fn fill(&mut self, in_place: bool) {
        self.iteration += 1;
        self.output.poison();
        if in_place {
            let start = self.test.in_place_offsets(self.comm.rank()).0 * self.count;
            let length = self.input.len();
            self.pattern.fill(&mut self.output.as_mut_slice()[start..start + length], self.iteration);
        } else {
            self.pattern.fill(self.input.as_mut_slice(), self.iteration);
        }
    }

    /// Counts wrong elements of the result, and elements of the input that were changed.
    fn verify(&mut self, in_place: bool) -> u64 {
        let (rank, ranks) = (self.comm.rank(), self.comm.size());
        let places = if in_place { self.test.in_place_offsets(rank) } else { (0, 0) };
        let (input, output) = (places.0 * self.count, places.1 * self.count);
        let results = output..output + self.test.shares(ranks, rank).1 * self.count;
        let (count, turn, inputs) = (self.count, self.iteration, self.input.len());
        let found = &mut self.output.as_mut_slice()[results.clone()];
        if self.arguments.corrupt
            && rank == self.test.checked_rank(ranks)
            && let Some(element) = found.last_mut()
        {
            *element = T::from_f64(if element.to_f64() == 0.0 { 1.0 } else { 0.0 });
        }
        let wrong = self.pattern.count_wrong(found, count, turn);
        if !in_place {
            return wrong + self.pattern.count_changed(self.input.as_slice(), 0, turn);
        }
        // In place, results cover part of the inputs; the inputs before and behind must be
        // unchanged.
        let (buffer, end) = (self.output.as_mut_slice(), input + inputs);
        let leading = &buffer[input..results.start.clamp(input, end)];
        let trailing = &buffer[results.end.clamp(input, end)..end];
        let offset = end - trailing.len() - input;
        wrong
            + self.pattern.count_changed(leading, 0, turn)
            + self.pattern.count_changed(trailing, offset, turn)
    }

    fn sum(&self, mut counts: [u64; 1]) -> Result<[u64; 1]> {
        self.comm.all_reduce(&mut counts, Sum)?;
        Ok(counts)
    }
}

fn call<T: Element>(
    test: &OpCase,
    comm: &Communicator,
    input: &GuardedBuffer<T>,
    output: &mut GuardedBuffer<T>,
    in_place: bool,
) -> Result<()> {
    let (inputs, outputs) = test.shares(comm.size(), comm.rank());
    let count = input.len().checked_div(inputs).unwrap_or(output.len() / outputs.max(1));
    match in_place {
        true => test.call_in_place(comm, output.as_mut_slice()),
        false => test.call(comm, input.as_slice(), &mut output.as_mut_slice()[..outputs * count]),
    }
}

impl OpKind {
    /// Gigabytes per second for an operation of `size` bytes.
    pub(super) fn bandwidth(size: usize, micros: f64) -> f64 {
        if micros > 0.0 { size as f64 / micros / 1e3 } else { 0.0 }
    }
}

/// A page.
const TIME_PER_SIZE_SECONDS: f64 = 0.05;
const ITERATIONS_MIN: u64 = 4;
const ITERATIONS_MAX: u64 = 2000;
const SAMPLES_MAX: usize = 200;
