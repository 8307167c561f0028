//! Connects the ranks that share memory: links and a window over the segments of all ranks.

use super::ControlMailboxes;
use super::Window;
use super::layout::Layout;
use super::link::ShmLink;
use super::sleep::Sleepers;
use crate::sys::segment::Segment;
use crate::{Error, Geometry, Link, Result};
use std::sync::Arc;

/// Links, window and mailboxes of a rank in shared memory.
pub struct Connected {
    /// Links by peer. There is none to the rank itself and to ranks on other hosts.
    pub links: Vec<Option<Box<dyn Link>>>,
    /// The window, if all ranks share memory.
    pub window: Option<Window>,
    /// The mailboxes for control messages of all ranks that share memory.
    pub mailboxes: ControlMailboxes,
    /// The words with which this rank sleeps until a rank that shares memory wakes it.
    pub sleepers: Arc<Sleepers>,
}

/// Makes this rank's links and, if all ranks share memory, its window. `peers[i]` is the segment of
/// rank i.
///
/// # Errors
/// Returns [`Error::InvalidUsage`] if there is not one entry for each rank, or if a segment does
/// not have the agreed size.
pub fn connect(
    rank: usize,
    ranks: usize,
    geometry: &Geometry,
    own: Segment,
    peers: Vec<Option<Segment>>,
) -> Result<Connected> {
    // The memory of peers only needs to be mapped, and descriptors are scarce.
    let keep = |mut segment: Segment| segment.close_fd().map(|()| Arc::new(segment));
    let mut segments: Vec<_> =
        peers.into_iter().map(|peer| peer.map(keep).transpose()).collect::<Result<_>>()?;
    if let Some(place) = segments.get_mut(rank) {
        *place = Some(Arc::new(own));
    }
    connect_shared(rank, ranks, geometry, segments)
}

/// As [`connect`], with segments that other ranks of this process hold as well.
pub(crate) fn connect_shared(
    rank: usize,
    ranks: usize,
    geometry: &Geometry,
    segments: Vec<Option<Arc<Segment>>>,
) -> Result<Connected> {
    let layout = Layout::new(ranks, geometry)?;
    if segments.len() != ranks {
        return Err(Error::InvalidUsage(format!("{} segments for {ranks} ranks", segments.len())));
    }
    if let Some(segment) = segments.iter().flatten().find(|segment| segment.bytes() != layout.bytes()) {
        let text = format!("a segment of {} bytes instead of {}", segment.bytes(), layout.bytes());
        return Err(Error::InvalidUsage(text));
    }
    let Some(own_segment) = segments.get(rank).cloned().flatten() else {
        return Err(Error::InvalidUsage("a rank needs a segment of its own".to_owned()));
    };
    let sleepers = Arc::new(Sleepers::new(rank, &own_segment, segments.clone()));
    let link = |(peer, segment): (usize, &Option<Arc<Segment>>)| {
        let segment = segment.as_ref().filter(|_| peer != rank)?;
        Some(Box::new(ShmLink::new(rank, peer, &layout, &own_segment, segment, &sleepers)) as Box<dyn Link>)
    };
    let links = segments.iter().enumerate().map(link).collect();
    let everybody: Option<Vec<_>> = segments.iter().cloned().collect();
    let window = everybody.map(|segments| Window::new(rank, layout, segments, &sleepers));
    Ok(Connected { links, window, mailboxes: ControlMailboxes::new(rank, segments), sleepers })
}

#[cfg(test)]
mod tests {
    use super::*;
    use unisono_reducers::{Source, Target, copy};

    const GEOMETRY: Geometry =
        Geometry { lanes: 1, slots: 2, slot_bytes: 64, signal_lanes: 1, window_bytes: 4096, heap_bytes: 0 };

    fn segment() -> Segment {
        Segment::create(Layout::new(3, &GEOMETRY).unwrap().bytes()).unwrap()
    }

    #[test]
    fn remote_ranks_get_no_link_and_no_window() {
        let Connected { links, window, .. } =
            connect(1, 3, &GEOMETRY, segment(), vec![Some(segment()), None, None]).unwrap();
        assert_eq!(links.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false, false]);
        assert!(window.is_none());
    }

    #[test]
    fn segment_count_and_size_are_checked() {
        let refused = |rank, peers| {
            matches!(connect(rank, 3, &GEOMETRY, segment(), peers), Err(Error::InvalidUsage(_)))
        };
        assert!(refused(1, vec![None, None]));
        assert!(refused(3, vec![None, None, None]));
        assert!(refused(1, vec![Some(Segment::create(4096).unwrap()), None, None]));
        assert!(!refused(1, vec![None, None, None]));
    }

    #[test]
    fn prepare_keeps_contents_and_touches_no_more() {
        const HALF: usize = 2 << 20;
        let geometry = Geometry { window_bytes: 2 * HALF, ..GEOMETRY };
        let segment = Arc::new(Segment::create(Layout::new(1, &geometry).unwrap().bytes()).unwrap());
        let connected = connect_shared(0, 1, &geometry, vec![Some(Arc::clone(&segment))]).unwrap();
        let mut window = connected.window.unwrap();
        let held = [7; 8];
        window.prepare(0).unwrap();
        assert_eq!(segment.resident_bytes(), 0, "nothing was asked for");
        window.prepare(1).unwrap();
        let first = segment.resident_bytes();
        // While the cores are busy, pages come on first touch.
        assert!(first <= HALF, "{first}");
        window.prepare(1).unwrap();
        assert_eq!(segment.resident_bytes(), first);
        copy(window.target(0, 8, 8), Source::from(&held[..]));
        copy(window.target(0, 2 * HALF - 8, 8), Source::from(&held[..]));
        window.prepare(2 * HALF).unwrap();
        assert!((first..=2 * HALF).contains(&segment.resident_bytes()));
        let mut found = [0; 8];
        for (offset, expected) in [(8, held), (2 * HALF - 8, held), (HALF, [0; 8])] {
            copy(Target::from(&mut found[..]), window.source(0, offset, 8));
            assert_eq!(found, expected, "at {offset}");
        }
    }
}
