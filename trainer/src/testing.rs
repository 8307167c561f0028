//! What tests of several modules need.

use crate::parallel::{Kept, Parallel};
use crate::parameter::{Inventory, ParameterId};
use std::collections::BTreeMap;
use unisono::{Communicator, Config, Order};

/// Runs `body` on so many ranks, which add in their order; what all of them return.
pub(crate) fn on<R: Send>(ranks: usize, body: impl Fn(Communicator) -> R + Sync) -> Vec<R> {
    let config = Config { order: Order::Ranks, ..Config::default() };
    on_with(ranks, &config, body)
}

/// As [`on`], with other settings of the communicator.
pub(crate) fn on_with<R: Send>(
    ranks: usize,
    config: &Config,
    body: impl Fn(Communicator) -> R + Sync,
) -> Vec<R> {
    let worlds = Communicator::threads_with(ranks, config).unwrap();
    std::thread::scope(|scope| {
        let threads: Vec<_> = worlds.into_iter().map(|world| scope.spawn(|| body(world))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Bits of weights and moments, by parameter and element of the whole.
pub(crate) type Bits = BTreeMap<(ParameterId, usize), Vec<u32>>;

/// What this rank keeps, without padding.
pub(crate) fn kept(strategy: &mut dyn Parallel, inventory: &Inventory) -> Bits {
    let mut bits = BTreeMap::new();
    let mut keep = |part: Kept<'_>| {
        for (index, place) in part.range.clone().enumerate() {
            let Some(place) = inventory[part.parameter].in_whole(place) else { continue };
            let weight = part.weights[index].to_bits();
            let moments = part.moments.iter().map(|moment| moment[index].to_bits());
            bits.insert((part.parameter, place), [weight].into_iter().chain(moments).collect());
        }
        Ok(())
    };
    strategy.visit(&mut keep).unwrap();
    bits
}

/// What all ranks together keep; they must agree where they keep the same.
pub(crate) fn joined(ranks: impl IntoIterator<Item = Bits>) -> Bits {
    let mut all = Bits::new();
    for (place, bits) in ranks.into_iter().flatten() {
        let known = all.entry(place).or_insert_with(|| bits.clone());
        assert_eq!(*known, bits, "at {place:?}");
    }
    all
}
