//! Medians of samples: the method that `benches/compare` uses for every library.
//!
//! A sample is a barrier, then calls back to back worth about a millisecond; its time is that of the
//! slowest rank, divided by the calls. Only the calls are inside the clock.

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
        let (table, mut hand_overs) = (self.flag_page(), Vec::new());
        let every = if self.comm.size() == 2 || calls == 1 { 1 } else { SAMPLES_PER_PROBE };
        for taken in times.len()..count {
            if let Some(table) = table.as_ref().filter(|_| taken % every == 0) {
                // Neither is in an operation that needs the other while they play.
                self.comm.barrier()?;
                hand_overs.extend(flag_latency(table, self.comm.rank(), self.comm.size()));
            }
            times.push(self.sample(calls)?);
        }
        self.comm.all_reduce(&mut times, Max)?;
        let hand_over = median(hand_overs);
        Ok(Timing {
            micros: median(times).unwrap_or_default() * 1e6,
            wrong,
            spread: None,
            flag_latency: hand_over,
        })
    }

    /// Where the first and the last rank find how far apart their cores are, if somebody wants to know.
    fn flag_page(&self) -> Option<FlagPage> {
        let path = self.arguments.flag_page.as_ref().filter(|_| self.comm.size() > 1)?;
        FlagPage::open(path).inspect_err(|error| tracing::warn!("no flag latencies: {error}")).ok()
    }

    /// How many calls make a sample, and the seconds of each; the same on all ranks.
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

/// Microseconds of a flag from the first rank's core to the last one's, one way; other ranks do not know. Where there
/// are more than two, somebody else may get the core in the middle of a game, so there are several, and the quickest counts.
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

/// Games and the turns of each: some ten microseconds, little beside a sample, once both have a core.
const TWO_RANKS: (usize, u64) = (1, 100);
const MANY_RANKS: (usize, u64) = (5, 20);
/// Of short samples of more than two ranks, which a game disturbs more.
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
