//! Processor time of exchanges between ranks that share cores.
//!
//! A rank that waits leaves its core to others, so an exchange costs no waiting. It costs processor
//! time, of copies and of switches between threads.

use crate::cost::Exchange;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use std::thread;
use unisono::Communicator;
use unisono_matmul::{Matrix, MatrixMut, matmul};
use unisono_nn::error::Result;

/// Costs of exchanges if all ranks do the same, in seconds of all cores.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ExchangeCosts {
    /// Exchanges on the threads that compute, which wait for them.
    pub calls: CoreCost,
    /// Exchanges on threads of their own.
    pub background: CoreCost,
}

/// Seconds of all cores that an exchange takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct CoreCost {
    /// For each collective.
    pub collective: f64,
    /// For each message in sequence.
    pub message: f64,
    /// For each byte of the buffers of a rank.
    pub byte: f64,
}

impl CoreCost {
    /// Returns the seconds of an exchange.
    pub fn time(&self, exchange: &Exchange) -> f64 {
        self.collective * exchange.collectives
            + self.message * exchange.messages
            + self.byte * exchange.buffer_bytes()
    }

    /// Solves for the costs from measured collectives with few bytes, and with `bytes` more: in
    /// pairs of ranks, and among all. An all-gather of two ranks has one message, and one of all
    /// has `messages`. The cost of a byte is the mean of both.
    fn new(few: [f64; 2], many: [f64; 2], messages: f64, bytes: f64) -> Self {
        let more: f64 = few.iter().zip(many).map(|(few, many)| (many - few) / 2.0).sum();
        let [pairs, all_ranks] = few;
        let all_ranks = all_ranks.max(0.0);
        // Noise can make few ranks slower than many, and then a message would have a negative cost.
        let pairs = pairs.clamp(0.0, all_ranks);
        let message = if messages > 1.0 { (all_ranks - pairs) / (messages - 1.0) } else { 0.0 };
        Self { collective: all_ranks - message * messages, message, byte: (more / bytes).max(0.0) }
    }
}

impl ExchangeCosts {
    /// Measures with an even number of threads, the ranks of `worlds`, and scales to `ranks` ranks
    /// that share the cores. Each rank computes for less than a millisecond between exchanges.
    ///
    /// # Errors
    /// Returns the error of a failed collective.
    pub(crate) fn measure(worlds: &[Communicator], ranks: usize) -> Result<Self> {
        let pairs = on_all(worlds, |world| Ok(world.split(Some(world.rank() as u32 / 2), 0)?))?;
        let pairs: Vec<_> = pairs.into_iter().flatten().collect();
        let more = ranks as f64 / worlds.len() as f64;
        let none = seconds(worlds, |_| Ok(()))?;
        let measure = |gather: Gather, groups: &[Communicator]| -> Result<[f64; 2]> {
            let cost_of = |bytes: usize| -> Result<f64> {
                let count = bytes / 4 / groups[0].size();
                Ok(more * (seconds(groups, |group| gather(group, count))? - none))
            };
            Ok([cost_of(FEW_BYTES)?, cost_of(MANY_BYTES)?])
        };
        let solve = |[few, many]: [f64; 2], [all_few, all_many]: [f64; 2]| {
            let (messages, bytes) = ((worlds.len() - 1) as f64, (MANY_BYTES - FEW_BYTES) as f64);
            CoreCost::new([few, all_few], [many, all_many], messages, bytes)
        };
        let call: Gather = |group, count| {
            let mut gathered = vec![0.0f32; count * group.size()];
            Ok(group.all_gather(&vec![1.0f32; count], &mut gathered)?)
        };
        let background: Gather = |group, count| {
            group.all_gather_async(vec![1.0f32; count]).wait()?;
            Ok(())
        };
        // A call of all ranks waits for the last of them. Its time depends on how their turns fall,
        // so that of pairs stands for it.
        let calls = measure(call, &pairs)?;
        let background = solve(measure(background, &pairs)?, measure(background, worlds)?);
        Ok(Self { calls: solve(calls, calls), background })
    }
}

/// Gathers this number of values of each rank.
type Gather = fn(&Communicator, usize) -> Result<()>;

/// Returns the seconds of all cores that a part of the computation and an exchange take: the least
/// of several rounds.
fn seconds(groups: &[Communicator], exchange: impl Fn(&Communicator) -> Result<()> + Sync) -> Result<f64> {
    let mut least = f64::INFINITY;
    for _ in 0..ROUNDS {
        let start = core_seconds();
        on_all(groups, |group| compute_and_exchange(group, &exchange))?;
        // Other threads of the process can only add time.
        least = least.min((core_seconds() - start) / EXCHANGES as f64);
    }
    Ok(least)
}

/// Runs `body` on a thread for each rank.
fn on_all<R: Send>(
    groups: &[Communicator],
    body: impl Fn(&Communicator) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    thread::scope(|scope| {
        let threads: Vec<_> = groups.iter().map(|group| scope.spawn(|| body(group))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    })
}

/// Computes, with an exchange after each part.
fn compute_and_exchange(group: &Communicator, exchange: impl Fn(&Communicator) -> Result<()>) -> Result<()> {
    let [left_values, right_values] = [0.5f32, 0.25].map(|value| vec![value; EXTENT * EXTENT]);
    let mut product = vec![0.0f32; EXTENT * EXTENT];
    for _ in 0..EXCHANGES {
        let into = MatrixMut::new(&mut product, EXTENT, EXTENT);
        let [left, right] = [&left_values, &right_values].map(|values| Matrix::new(values, EXTENT, EXTENT));
        matmul(into, 0.0, 1.0, left, right, 1);
        exchange(group)?;
    }
    Ok(())
}

/// Returns the processor time of this process in seconds, divided by the number of cores. It is the
/// time of work that fills all cores, even if other programs use them too.
pub(crate) fn core_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let cores = thread::available_parallelism().map_or(1, usize::from);
    (time.tv_sec as f64 + 1e-9 * time.tv_nsec as f64) / cores as f64
}

const ROUNDS: usize = 5;
const EXCHANGES: usize = 40;
const EXTENT: usize = 256;
const FEW_BYTES: usize = 1 << 10;
const MANY_BYTES: usize = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::{ExchangeKind, Hardware};

    #[test]
    fn measured_collectives_have_their_costs() {
        let cost = CoreCost { collective: 1e-4, message: 1e-5, byte: 1e-9 };
        let gather = |ranks: usize, bytes: f64| Exchange {
            kind: ExchangeKind::Data,
            ranks,
            apart: 1,
            collectives: 1.0,
            messages: (ranks - 1) as f64,
            bytes: bytes * (ranks - 1) as f64 / ranks as f64,
        };
        let times = |bytes| [2, 8].map(|ranks| cost.time(&gather(ranks, bytes)));
        let solved = CoreCost::new(times(0.0), times(1e6), 7.0, 1e6);
        let near = |left: f64, right: f64| assert!((left / right - 1.0).abs() < 1e-6, "{solved:?}");
        near(solved.collective, cost.collective);
        near(solved.message, cost.message);
        near(solved.byte, cost.byte);
        near(times(1e6)[1], 1.17e-3);
    }

    #[test]
    fn noise_makes_no_cost_negative() {
        let CoreCost { collective, message, byte } = CoreCost::new([2e-4, 1e-4], [1e-4, 1e-4], 7.0, 1e6);
        assert_eq!([collective, message, byte], [1e-4, 0.0, 0.0]);
        assert_eq!(CoreCost::new([-1e-4; 2], [-1e-4; 2], 1.0, 1e6), CoreCost::default());
    }

    #[test]
    fn ranks_that_share_cores_copy_instead_of_waiting_for_a_link() {
        let worlds = Communicator::local(4).unwrap();
        let costs = ExchangeCosts::measure(&worlds, 8).unwrap();
        let mut hardware = Hardware::named("h100-80", 8).unwrap();
        hardware.set_per_host(4);
        let exchange = |apart| Exchange {
            kind: ExchangeKind::Tensor,
            ranks: 4,
            apart,
            collectives: 1.0,
            messages: 6.0,
            bytes: 1e6,
        };
        let link_times = |hardware: &Hardware| [1, 2].map(|apart| exchange(apart).link_time(hardware));
        assert!(link_times(&hardware).into_iter().all(|seconds| seconds > 0.0));
        assert_eq!(exchange(1).core_time(&hardware), 0.0);
        let sizes = [costs.calls, costs.background].map(|cost| cost.time(&exchange(1)));
        assert!(sizes.into_iter().all(|seconds| (1e-6..1.0).contains(&seconds)), "{costs:?}");
        hardware.exchange_costs = Some(costs);
        let [within, across] = link_times(&hardware);
        assert!(within == 0.0 && across > 0.0);
        assert_eq!(exchange(1).core_time(&hardware), costs.calls.time(&exchange(1)));
    }
}
