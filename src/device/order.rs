//! In which order ranks stand in rings: neighbours are those whose GPUs have the best paths to each other.

use crate::communicator::Communicator;
use crate::error::Result;
use crate::rendezvous::host_identity;
use crate::schedule::Rank;
use unisono_cuda::device::{Gpu, GpuError, Links, Path, Site};

/// The order of all ranks, the same on all of them.
pub(super) fn agree_on_order(base: &Communicator, gpu: &Gpu) -> Result<Vec<Rank>> {
    let mut place = [0u8; PLACE_BYTES];
    let text = format!("{} {}", gpu.site().bus_id().unwrap_or_default(), host_identity());
    place.iter_mut().zip(text.bytes()).for_each(|(to, byte)| *to = byte);
    let mut places = place.repeat(base.ranks());
    base.all_gather(&place, &mut places)?;
    // What the driver does not say counts as far, and on all ranks alike.
    let seen = visible(gpu).unwrap_or_default();
    let own: Vec<u8> = places.chunks(PLACE_BYTES).map(|theirs| distance(&place, theirs, &seen)).collect();
    let mut all = own.repeat(base.ranks());
    base.all_gather(&own, &mut all)?;
    Ok(ring(&all, base.ranks()))
}

/// The GPUs that this process sees: where they are, and how far from `gpu`.
fn visible(gpu: &Gpu) -> std::result::Result<Vec<(String, u8)>, GpuError> {
    let seen = |site: Site| {
        let unknown = |why: &GpuError| {
            tracing::debug!(target: "device", "{gpu:?}: {why}; what the driver says of paths is all");
        };
        let links = gpu.site().links_to(&site).inspect_err(unknown).ok();
        Ok((site.bus_id()?, far(gpu.site().path_to(&site)?, links)))
    };
    Site::all()?.into_iter().filter(|site| *site != gpu.site()).map(seen).collect()
}

/// How far a GPU is by the path to it, and by the links between, where they are counted: those that carry more are nearer, and without any it is
/// further than with one.
fn far(path: Path, links: Option<Links>) -> u8 {
    let rank = path.rank.min(RANK_MAX) as u8;
    match links.map(|links| links.gigabytes()) {
        _ if !path.direct => BY_HOST,
        None => DIRECT + rank,
        Some(0) => UNLINKED + rank,
        Some(gigabytes) => DIRECT + (LINKED / gigabytes.max(LINK)) as u8,
    }
}

/// How far the GPU of a rank is that is at `theirs`.
fn distance(own: &[u8], theirs: &[u8], seen: &[(String, u8)]) -> u8 {
    let split = |place: &[u8]| {
        let text = String::from_utf8_lossy(place);
        text.split_once(' ').map(|(bus_id, host)| (bus_id.to_owned(), host.to_owned())).unwrap_or_default()
    };
    let ((own_id, own_host), (bus_id, host)) = (split(own), split(theirs));
    match seen.iter().find(|(known, _)| *known == bus_id) {
        _ if host != own_host => ELSEWHERE,
        _ if bus_id == own_id && !bus_id.is_empty() => 0,
        Some((_, distance)) => *distance,
        // Another process may see it.
        None => BY_HOST,
    }
}

/// Each rank is followed by the nearest that is left, the lowest of them, if that is shorter than the order of the numbers. Of a path whose ends
/// differ, the worse counts.
fn ring(distances: &[u8], ranks: usize) -> Vec<Rank> {
    let apart = |one: Rank, other: Rank| distances[one * ranks + other].max(distances[other * ranks + one]);
    let length = |order: &[Rank]| -> u32 {
        (0..ranks).map(|at| u32::from(apart(order[at], order[(at + 1) % ranks]))).sum()
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

/// Distances: on one GPU 0; the driver's rank of the link is added, where it is not known what links carry.
const DIRECT: u8 = 1;
const RANK_MAX: u32 = 90;
/// Shared among the gigabytes a second of links; one link has so many at least.
const LINKED: u32 = 1000;
const LINK: u32 = 25;
const UNLINKED: u8 = 50;
const BY_HOST: u8 = 150;
const ELSEWHERE: u8 = 200;
/// Room for where a GPU is, and its host.
const PLACE_BYTES: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_have_the_best_paths() {
        // Two pairs, 0 with 2 and 1 with 3, and a worse link between 2 and 3.
        let mut distances = [BY_HOST; 16];
        for (one, other, distance) in [(0, 2, 1), (1, 3, 1), (2, 3, 5)] {
            distances[one * 4 + other] = distance;
            distances[other * 4 + one] = distance;
        }
        assert_eq!(ring(&distances, 4), [0, 2, 3, 1]);
        assert_eq!(ring(&[1; 25], 5), [0, 1, 2, 3, 4], "no path is better than another");
        assert_eq!(ring(&[0], 1), [0]);
    }

    #[test]
    fn more_links_are_nearer_and_none_is_further() {
        let path = |direct, rank| Path { direct, rank, atomics: direct };
        let links = |count| Some(Links { count, version: (4, 0) });
        let distances = [
            far(path(true, 3), links(18)),
            far(path(true, 0), links(12)),
            far(path(true, 0), links(4)),
            far(path(true, 0), links(1)),
            far(path(true, 0), links(0)),
            far(path(true, 1), links(0)),
            far(path(true, 1000), links(0)),
            far(path(false, 0), links(0)),
        ];
        assert!(distances.is_sorted_by(|near, far| near < far), "{distances:?}");
        assert_eq!([far(path(true, 3), None), far(path(false, 0), None)], [4, BY_HOST], "not counted");
    }

    #[test]
    fn ranks_of_another_host_are_the_furthest() {
        let seen = [("b".to_owned(), 3)];
        let from = |place: &[u8]| distance(b"a here", place, &seen);
        assert_eq!([&b"a here"[..], b"b here", b"c here", b"b there"].map(from), [0, 3, BY_HOST, ELSEWHERE]);
    }
}
