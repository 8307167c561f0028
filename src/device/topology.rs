//! The order of ranks in rings, in which neighbors are ranks whose GPUs have the best paths to each
//! other.

use crate::bootstrap::host_identity;
use crate::communicator::Communicator;
use crate::error::Result;
use crate::schedule::Rank;
use unisono_cuda::device::{Gpu, GpuError, GpuInfo, NvLinks, PeerPath};

/// Bus addresses of the GPUs of all ranks, each with its host.
pub(super) struct Locations {
    own: Rank,
    all: Vec<[u8; LOCATION_BYTES]>,
}

impl Locations {
    /// Exchanges the locations of all ranks.
    pub(super) fn exchange(base: &Communicator, gpu: &Gpu) -> Result<Self> {
        let mut location = [0u8; LOCATION_BYTES];
        let text = format!("{} {}", gpu.info().bus_id().unwrap_or_default(), host_identity());
        location.iter_mut().zip(text.bytes()).for_each(|(target, byte)| *target = byte);
        let mut locations = location.repeat(base.size());
        base.all_gather(&location, &mut locations)?;
        let locations = locations.chunks_exact(LOCATION_BYTES).filter_map(|each| each.first_chunk().copied());
        Ok(Self { own: base.rank(), all: locations.collect() })
    }

    /// Returns true if NVLinks connect `gpu`, which is this rank's, with that of another rank of
    /// the host. The answer is false if links are not counted.
    pub(super) fn is_linked(&self, gpu: &Gpu, rank: Rank) -> bool {
        let ((_, own_host), (bus_id, host)) = (split(&self.all[self.own]), split(&self.all[rank]));
        own_host == host && gpu.info().nvlinks_to_bus_id(&bus_id).is_ok_and(|links| links.count > 0)
    }
}

/// Returns the order of all ranks, the same on all of them.
pub(super) fn agree_on_order(base: &Communicator, gpu: &Gpu, locations: &Locations) -> Result<Vec<Rank>> {
    // GPUs that the driver does not report are treated as far away. This is the same on all ranks.
    let seen = visible_gpus(gpu).unwrap_or_default();
    let place = &locations.all[locations.own];
    let distances: Vec<u8> = locations.all.iter().map(|theirs| rank_distance(place, theirs, &seen)).collect();
    let mut table = distances.repeat(base.size());
    base.all_gather(&distances, &mut table)?;
    Ok(nearest_ring(&table, base.size()))
}

/// Returns the GPUs visible to this process: their locations, and their distances from `gpu`.
fn visible_gpus(gpu: &Gpu) -> std::result::Result<Vec<(String, u8)>, GpuError> {
    let seen = |site: GpuInfo| {
        let unknown = |why: &GpuError| {
            tracing::debug!(target: "device", "{gpu:?}: {why}; what the driver says of paths is all");
        };
        let links = gpu.info().nvlinks_to(&site).inspect_err(unknown).ok();
        Ok((site.bus_id()?, link_distance(gpu.info().peer_path(&site)?, links)))
    };
    GpuInfo::all()?.into_iter().filter(|site| *site != gpu.info()).map(seen).collect()
}

/// Returns the distance of a GPU. It depends on the path to the GPU and, if they are counted, on
/// the links between.
///
/// Links with more bandwidth give a smaller distance. A GPU without any link is farther than one
/// with a link.
fn link_distance(path: PeerPath, links: Option<NvLinks>) -> u8 {
    let rank = path.rank.min(PATH_RANK_MAX) as u8;
    match links.map(|links| links.gigabytes()) {
        _ if !path.direct => VIA_HOST,
        None => DIRECT_BASE + rank,
        Some(0) => NO_LINK_BASE + rank,
        Some(gigabytes) => DIRECT_BASE + (LINK_SCALE / gigabytes.max(LINK_GBPS_MIN)) as u8,
    }
}

/// Returns the bus address and the host of a location.
fn split(place: &[u8]) -> (String, String) {
    let text = String::from_utf8_lossy(place);
    text.split_once(' ').map(|(bus_id, host)| (bus_id.to_owned(), host.to_owned())).unwrap_or_default()
}

/// Returns the distance of a rank whose GPU is at `theirs`.
fn rank_distance(own_place: &[u8], theirs: &[u8], seen: &[(String, u8)]) -> u8 {
    let ((own_id, own_host), (bus_id, host)) = (split(own_place), split(theirs));
    match seen.iter().find(|(known, _)| *known == bus_id) {
        _ if host != own_host => OTHER_HOST,
        _ if bus_id == own_id && !bus_id.is_empty() => 0,
        Some((_, distance)) => *distance,
        // Another process may see that GPU.
        None => VIA_HOST,
    }
}

/// Returns a ring in which each rank is followed by the nearest remaining rank, or by the lowest of
/// several equally near ranks.
///
/// The order of the rank numbers is returned instead unless the ring is shorter. A path whose ends
/// report different distances counts with the larger one.
fn nearest_ring(distances: &[u8], ranks: usize) -> Vec<Rank> {
    let apart =
        |rank: Rank, other: Rank| distances[rank * ranks + other].max(distances[other * ranks + rank]);
    let length = |order: &[Rank]| -> u32 {
        (0..ranks).map(|position| u32::from(apart(order[position], order[(position + 1) % ranks]))).sum()
    };
    let numbers: Vec<Rank> = (0..ranks).collect();
    let mut order = vec![0];
    while order.len() < ranks {
        let left = numbers.iter().filter(|rank| !order.contains(rank));
        let last = order[order.len() - 1];
        order.extend(left.min_by_key(|&&rank| apart(last, rank)).copied());
    }
    if length(&order) < length(&numbers) { order } else { numbers }
}

/// Parses bytes as the distances and locations that ranks send each other.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn fuzz(bytes: &[u8]) {
    let ranks = bytes.len().isqrt().min(32);
    if ranks > 0 {
        let mut ring = nearest_ring(bytes, ranks);
        ring.sort_unstable();
        assert!(ring.into_iter().eq(0..ranks), "each rank is in the ring once");
    }
    let (own_place, theirs) = bytes.split_at(bytes.len() / 2);
    let seen = [split(theirs)].map(|(bus_id, _)| (bus_id, 3));
    let _ = rank_distance(own_place, theirs, &seen);
}

/// Base of direct distances; one GPU has distance 0. The driver's link rank is added where the
/// bandwidth of the links is unknown.
const DIRECT_BASE: u8 = 1;
const PATH_RANK_MAX: u32 = 90;
/// Divided by the bandwidth of the links, in gigabytes per second, to give a distance. One link has
/// at least `LINK_GBPS_MIN`.
const LINK_SCALE: u32 = 1000;
const LINK_GBPS_MIN: u32 = 25;
const NO_LINK_BASE: u8 = 50;
const VIA_HOST: u8 = 150;
const OTHER_HOST: u8 = 200;
/// Bytes reserved for the location of a GPU and its host.
const LOCATION_BYTES: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_ring_prefers_best_paths() {
        // Two pairs, 0 with 2 and 1 with 3, and a worse link between 2 and 3.
        let mut distances = [VIA_HOST; 16];
        for (gpu, peer, distance) in [(0, 2, 1), (1, 3, 1), (2, 3, 5)] {
            distances[gpu * 4 + peer] = distance;
            distances[peer * 4 + gpu] = distance;
        }
        assert_eq!(nearest_ring(&distances, 4), [0, 2, 3, 1]);
        assert_eq!(nearest_ring(&[1; 25], 5), [0, 1, 2, 3, 4], "no path is better than another");
        assert_eq!(nearest_ring(&[0], 1), [0]);
    }

    #[test]
    fn link_distance_decreases_with_bandwidth() {
        let path = |direct, rank| PeerPath { direct, rank, atomics: direct };
        let links = |count| Some(NvLinks { count, version: (4, 0) });
        let distances = [
            link_distance(path(true, 3), links(18)),
            link_distance(path(true, 0), links(12)),
            link_distance(path(true, 0), links(4)),
            link_distance(path(true, 0), links(1)),
            link_distance(path(true, 0), links(0)),
            link_distance(path(true, 1), links(0)),
            link_distance(path(true, 1000), links(0)),
            link_distance(path(false, 0), links(0)),
        ];
        assert!(distances.is_sorted_by(|shorter, longer| shorter < longer), "{distances:?}");
        assert_eq!(
            [link_distance(path(true, 3), None), link_distance(path(false, 0), None)],
            [4, VIA_HOST],
            "not counted"
        );
    }

    #[test]
    fn rank_distance_is_largest_across_hosts() {
        let seen = [("b".to_owned(), 3)];
        let distance = |place: &[u8]| rank_distance(b"a here", place, &seen);
        assert_eq!(
            [&b"a here"[..], b"b here", b"c here", b"b there"].map(distance),
            [0, 3, VIA_HOST, OTHER_HOST]
        );
    }
}
