//! The algorithms whose messages fit a slot. Slots are short where there are many ranks, and some
//! algorithms send chunks for half of all ranks in one message.

use crate::device::plan::SLICE_UNIT_BYTES;
use crate::engine::ScheduleBounds;
use crate::schedule::{Algorithm, GroupSpec, PeerAccess};
use std::collections::HashMap;

/// Chunks of the longest messages of the algorithms asked for so far.
#[derive(Default)]
pub(super) struct MessageCache(HashMap<(usize, GroupSpec), usize>);

impl MessageCache {
    /// Returns true if the shortest slices of `algorithm` fit a slot of `slot_bytes`.
    pub(super) fn fit(&mut self, algorithm: &'static Algorithm, spec: &GroupSpec, slot_bytes: usize) -> bool {
        // No message has more chunks than there are ranks and parts of their shares.
        let most = spec.ranks * (algorithm.chunks_per_share)(spec);
        if algorithm.peer_access != PeerAccess::TwoSided || most <= chunks_of_slot(slot_bytes) {
            return true;
        }
        let key = (std::ptr::from_ref(algorithm) as usize, *spec);
        let longest = || ScheduleBounds::of(algorithm, spec).chunks_per_message;
        *self.0.entry(key).or_insert_with(longest) <= chunks_of_slot(slot_bytes)
    }
}

/// Returns the number of shortest slices in a slot, at least one, as a power of two.
pub(super) fn chunks_of_slot(slot_bytes: usize) -> usize {
    1 << (slot_bytes / SLICE_UNIT_BYTES).max(1).ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use crate::schedule::Collective;
    use crate::select::{Topology, algorithm_that_fits};

    #[test]
    fn short_slots_select_short_messages() {
        let (mut messages, config) = (MessageCache::default(), Config::default());
        let mut name = |collective, ranks, slot| {
            let spec = GroupSpec::new(ranks);
            let fits = |row| messages.fit(row, &spec, slot);
            let found = algorithm_that_fits(collective, &spec, 64, Topology::Network, (false, &config), fits);
            found.unwrap().name
        };
        assert_eq!(name(Collective::Gather, 200, 128 << 10), "binomial");
        assert_eq!(name(Collective::Gather, 200, 512), "linear");
        assert_eq!(name(Collective::AllToAll, 200, 512), "pairwise");
        for collective in Collective::ALL.into_iter().filter(|collective| !collective.is_scan()) {
            name(collective, 200, 64);
        }
    }
}
