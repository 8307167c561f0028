//! Medians of samples. `benches/compare` uses this method for every library.
//!
//! A sample is a barrier, then back-to-back calls that last about a millisecond. Its time is the
//! time of the slowest rank divided by the number of calls. The clock covers the calls only.

use super::{Bench, OpKind, Timing};
use std::time::Instant;
use unisono::{Element, Max, Result};
use unisono_bench_support::stats::median;
use unisono_transports::testing::flag_latency::{FlagPage, Side};

impl<T: Element> Bench<'_, T> {
    /// Verifies one operation, then takes samples for about `seconds`.
    pub(super) fn samples(&mut self, seconds: f64) -> Result<Timing> {
        let in_place = self.is_sampled_in_place();
        self.fill(in_place);
        self.sample(1)?;
        self.record_algorithm()?;
        let wrong = if self.arguments.check > 0 { Some(self.verify(in_place)) } else { None };
        let wrong = wrong.map(|wrong| self.sum([wrong])).transpose()?.map(|[wrong]| wrong);
        let first = self.slowest(1)?;
        let mut calls = self.calibrate(first)?;
        // A long call needs no warmup, so it is already a sample.
        let mut times = if first < LONG_CALL_SECONDS { Vec::new() } else { vec![first] };
        let (table, mut latencies) = (self.flag_page(), Vec::new());
        let every = if self.comm.size() == 2 || calls == 1 { 1 } else { SAMPLES_PER_PROBE };
        let mut spent = times.iter().sum();
        // The times are those of the slowest rank, so all ranks have the same ones and leave this
        // loop together.
        while is_lacking(times.len(), spent, seconds) {
            if let Some(table) = table.as_ref().filter(|_| times.len().is_multiple_of(every)) {
                // Neither is in an operation that needs the other while they play.
                self.comm.barrier()?;
                latencies.extend(flag_latency(table, self.comm.rank(), self.comm.size()));
            }
            let each = self.slowest(calls)?;
            times.push(each);
            spent += calls as f64 * each;
            calls = calls_after(calls, each);
        }
        let flag_latency = median(latencies);
        let micros = median(times).unwrap_or_default() * 1e6;
        Ok(Timing { micros, wrong, spread: None, flag_latency, gpu_micros: None })
    }

    /// Opens the page on which the first and the last rank measure their flag latency, if it was
    /// requested.
    fn flag_page(&self) -> Option<FlagPage> {
        let path = self.arguments.flag_page.as_ref().filter(|_| self.comm.size() > 1)?;
        FlagPage::open(path).inspect_err(|error| tracing::warn!("no flag latencies: {error}")).ok()
    }

    /// Returns the number of calls of a sample; the result is equal on all ranks.
    fn calibrate(&mut self, first: f64) -> Result<usize> {
        let mut each = first;
        for _ in 0..2 {
            if each < LONG_CALL_SECONDS {
                each = self.slowest(1)?;
            }
        }
        let calls = calls_for(each);
        if calls > 1 {
            each = self.slowest(calls)?;
        }
        Ok(calls_for(each))
    }

    fn slowest(&mut self, calls: usize) -> Result<f64> {
        let mut seconds = [self.sample(calls)?];
        self.comm.all_reduce(&mut seconds, Max)?;
        Ok(seconds[0])
    }

    /// MPI and Gloo have only broadcasts in place. They do not copy the buffer, so the comparison
    /// must not copy it either.
    pub(super) fn is_sampled_in_place(&self) -> bool {
        self.test.kind == OpKind::Broadcast
    }

    /// Seconds of one call on this rank.
    fn sample(&mut self, calls: usize) -> Result<f64> {
        self.comm.barrier()?;
        let begun = Instant::now();
        for _ in 0..calls {
            self.call(self.is_sampled_in_place())?;
        }
        Ok(begun.elapsed().as_secs_f64() / calls as f64)
    }
}

/// Returns the one-way flag latency between the first and the last rank in microseconds; other
/// ranks return `None`.
///
/// With more than two ranks, another rank may get the core during a ping-pong. Several ping-pongs
/// run, and the fastest counts.
fn flag_latency(table: &FlagPage, rank: usize, ranks: usize) -> Option<f64> {
    let side = match rank {
        0 => Side::Initiator,
        _ if rank + 1 == ranks => Side::Responder,
        _ => return None,
    };
    let (games, turns) = if ranks == 2 { TWO_RANKS } else { MANY_RANKS };
    let quickest = (0..games).filter_map(|_| table.run(side, turns)).min();
    quickest.map(|one_way| one_way.as_secs_f64() * 1e6)
}

fn calls_for(each: f64) -> usize {
    ((SAMPLE_SECONDS / each.max(1e-9)) as usize).clamp(1, CALLS_MAX)
}

/// Returns whether samples that took `spent` seconds are too few for a time of `seconds`.
fn is_lacking(samples: usize, spent: f64, seconds: f64) -> bool {
    samples < SAMPLES_MIN || samples < SAMPLES_MAX && spent < seconds
}

/// Returns the calls of the next sample. Under load, the calls by which `calls` was estimated can
/// have been much shorter than those of the last sample.
fn calls_after(calls: usize, each: f64) -> usize {
    if calls as f64 * each > MISJUDGED_SAMPLE_SECONDS { calls_for(each).min(calls) } else { calls }
}

/// Number of ping-pongs, and the round trips of each: some ten microseconds, little beside a
/// sample.
const TWO_RANKS: (usize, u64) = (1, 100);
const MANY_RANKS: (usize, u64) = (5, 20);
/// Short samples between two ping-pongs for more than two ranks, which a ping-pong disturbs more.
const SAMPLES_PER_PROBE: usize = 8;
const SAMPLE_SECONDS: f64 = 1e-3;
const MISJUDGED_SAMPLE_SECONDS: f64 = 1e-2;
const LONG_CALL_SECONDS: f64 = 0.05;
const CALLS_MAX: usize = 2000;
const SAMPLES_MIN: usize = 3;
const SAMPLES_MAX: usize = 201;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_a_millisecond_and_some_are_always_taken() {
        assert_eq!(
            (calls_for(1e-6), calls_for(1e-3), calls_for(2.0), calls_for(0.0)),
            (1000, 1, 1, CALLS_MAX)
        );
        assert!(is_lacking(2, 9.0, 0.4) && is_lacking(3, 0.1, 0.4));
        assert!(!is_lacking(3, 0.5, 0.4) && !is_lacking(SAMPLES_MAX, 0.1, 0.4));
    }

    #[test]
    fn misjudged_calls_become_fewer_and_never_more() {
        // A call was estimated at 1 µs, and took 4 ms when its rank had to wait for a core.
        assert_eq!((calls_after(1000, 4e-3), calls_after(1000, 20e-6)), (1, 50));
        assert_eq!((calls_after(1000, 5e-6), calls_after(1000, 1e-9), calls_after(1, 2.0)), (1000, 1000, 1));
    }
}
