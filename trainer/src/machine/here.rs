//! Hardware of a plan by name, of which `here` is this machine.

use crate::available_memory::host_memory;
use crate::machine::exchange_costs::exchange_costs;
use crate::machine::{peak_flops, transfers};
use unisono::Communicator;
use unisono_nn::error::{Error, Result};
use unisono_plan::cost::{ExchangeCosts, Hardware, Link, ring};

/// Most threads that measure costs of exchanges.
const MAX_THREADS: usize = 64;

/// Returns hardware of the kind `name`: one of [`Hardware::named`], or `here` for this machine,
/// measured. With `per_host`, each host has so many ranks, and `here` is a host like this machine.
///
/// # Errors
/// [`Error::Invalid`] names the valid kinds. Returns the error of a failed measurement.
pub(crate) fn hardware(name: &str, ranks: usize, per_host: Option<usize>) -> Result<Hardware> {
    let mut hardware = match name {
        "here" => {
            let measured = this_machine(per_host.map_or(ranks, |per_host| per_host.min(ranks)))?;
            Hardware { ranks, ..measured }
        }
        _ => Hardware::named(name, ranks).map_err(|error| match error {
            Error::Invalid(what) if ranks > 0 => Error::invalid(format!("{what}, and here, this machine")),
            other => other,
        })?,
    };
    if let Some(per_host) = per_host {
        hardware.set_per_host(per_host);
    }
    Ok(hardware)
}

/// Measures this machine as one host of `ranks` ranks, each with its share of the memory. Links are
/// measured between threads. Ranks beyond the number of cores share them.
///
/// # Errors
/// [`Error::Invalid`] for 0 ranks. Returns the error of a failed measurement.
pub fn this_machine(ranks: usize) -> Result<Hardware> {
    if ranks == 0 {
        return Err(Error::invalid("a plan for 0 ranks"));
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let measured = ranks.clamp(2, 16);
    let groups = Communicator::local(measured)?;
    let link = Link::fit(ring(), measured, &transfers::sweep(groups, &transfers::SIZES)?)?;
    let exchange_costs = costs_of_shared_cores(ranks, cores)?;
    let Some(memory) = host_memory() else {
        return Err(Error::Unsupported("the memory of this machine is unknown: give it".to_owned()));
    };
    Ok(Hardware {
        ranks,
        per_host: ranks,
        memory: memory as f64 / ranks as f64,
        memory_bandwidth: transfers::memory_bandwidth(),
        flops: peak_flops(1),
        half_rate_rows: 0.0,
        cores_per_rank: cores.min(ranks) as f64 / ranks as f64,
        exchange_costs,
        per_domain: ranks,
        intra_domain: link,
        intra_host: link,
        inter_host: link,
    })
}

/// Measures what exchanges cost `ranks` ranks that share cores; `None` if they have cores of their
/// own.
fn costs_of_shared_cores(ranks: usize, cores: usize) -> Result<Option<ExchangeCosts>> {
    // So many that threads wait for cores, and an even number.
    let threads = ranks.min((2 * cores).clamp(16, MAX_THREADS)).next_multiple_of(2);
    if ranks.min(threads) <= cores {
        return Ok(None);
    }
    exchange_costs(&Communicator::local(threads)?, ranks).map(Some)
}
