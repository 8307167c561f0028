//! Medians of samples: the method that `benches/compare` uses for every library.
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
        let (calls, each) = self.calibrate(first)?;
        let count = samples_for(seconds, calls as f64 * each);
        // A long call is warm and a sample at once.
        let mut times = if first < LONG_CALL_SECONDS { Vec::new() } else { vec![first] };
        let (table, mut latencies) = (self.flag_page(), Vec::new());
        let every = if self.comm.size() == 2 || calls == 1 { 1 } else { SAMPLES_PER_PROBE };
        for taken in times.len()..count {
            if let Some(table) = table.as_ref().filter(|_| taken % every == 0) {
                // Neither is in an operation that needs the other while they play.
                self.comm.barrier()?;
                latencies.extend(flag_latency(table, self.comm.rank(), self.comm.size()));
            }
            times.push(self.sample(calls)?);
        }
        self.comm.all_reduce(&mut times, Max)?;
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

    /// Returns the number of calls of a sample and the seconds of each; the result is equal on all
    /// ranks.
    fn calibrate(&mut self, first: f64) -> Result<(usize, f64)> {
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
        Ok((calls_for(each), each))
    }

    fn slowest(&mut self, calls: usize) -> Result<f64> {
        let mut seconds = [self.sample(calls)?];
        self.comm.all_reduce(&mut seconds, Max)?;
        Ok(seconds[0])
    }

    /// MPI and Gloo know broadcasts in place only, and what they do not copy we need not either.
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

fn samples_for(seconds: f64, sample: f64) -> usize {
    ((seconds / sample.max(1e-9)) as usize).clamp(SAMPLES_MIN, SAMPLES_MAX)
}

/// Number of ping-pongs, and the round trips of each: some ten microseconds, little beside a
/// sample.
const TWO_RANKS: (usize, u64) = (1, 100);
const MANY_RANKS: (usize, u64) = (5, 20);
/// Short samples between two ping-pongs for more than two ranks, which a ping-pong disturbs more.
const SAMPLES_PER_PROBE: usize = 8;
const SAMPLE_SECONDS: f64 = 1e-3;
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
        assert_eq!((samples_for(0.4, 1e-3), samples_for(0.05, 1e-3)), (SAMPLES_MAX, 50));
        assert_eq!((samples_for(0.4, 0.1), samples_for(0.4, 2.0)), (4, SAMPLES_MIN));
    }
}
