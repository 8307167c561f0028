//! Measures the processor time of exchanges between ranks that share cores.

use rustix::time::{ClockId, clock_gettime};
use std::thread;
use unisono::Communicator;
use unisono_matmul::{Matrix, MatrixMut, matmul};
use unisono_nn::error::Result;
use unisono_plan::cost::{CoreCost, ExchangeCosts};

/// Measures the costs of exchanges with an even number of threads, the ranks of `worlds`, and
/// scales to `ranks` ranks that share the cores. Each rank computes for less than a millisecond
/// between exchanges.
///
/// # Errors
/// Returns the error of a failed collective.
pub(super) fn exchange_costs(worlds: &[Communicator], ranks: usize) -> Result<ExchangeCosts> {
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
    Ok(ExchangeCosts { calls: solve(calls, calls), background })
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
        let output = MatrixMut::new(&mut product, EXTENT, EXTENT);
        let [left, right] = [&left_values, &right_values].map(|values| Matrix::new(values, EXTENT, EXTENT));
        matmul(output, 0.0, 1.0, left, right, 1);
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
    use unisono_plan::cost::{Exchange, ExchangeKind, Hardware};

    #[test]
    fn ranks_that_share_cores_copy_instead_of_waiting_for_a_link() {
        let worlds = Communicator::local(4).unwrap();
        let costs = exchange_costs(&worlds, 8).unwrap();
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
        let [within_host, across_hosts] = link_times(&hardware);
        assert!(within_host == 0.0 && across_hosts > 0.0);
        assert_eq!(exchange(1).core_time(&hardware), costs.calls.time(&exchange(1)));
    }
}
