//! Links and windows, both ends in the hands of one thread.

use super::{Paged, Turn};
use std::hint::black_box;
use std::iter::once;
use std::os::unix::net::UnixStream;
use unisono_cuda::{Source, copy};
use unisono_transports::socket::Stream;
use unisono_transports::tcp::TcpLink;
use unisono_transports::{Cell, Geometry, Link, Tag, Window, threads};

/// The two ends of something between two ranks.
type Ends = [Box<dyn Link>; 2];

/// A tag as bytes and back.
pub(super) fn tag() -> Turn {
    Box::new(|| assert_eq!(Tag::from_bytes(&black_box(black_box(TAG).to_bytes())), TAG))
}

/// Through shared memory.
pub(super) fn shared() -> Ends {
    let meshes = threads::mesh(2, GEOMETRY).expect("little memory");
    let links = meshes.into_iter().map(|mesh| mesh.links.into_iter().flatten().next());
    ends(links.flatten())
}

/// Through what links over TCP do, but over local sockets: these deliver before the call returns.
pub(super) fn sockets() -> Ends {
    let (near, far) = UnixStream::pair().expect("a pair of sockets");
    let link = |(rank, stream)| TcpLink::new(1 - rank, &GEOMETRY, vec![Stream::Unix(stream)]);
    ends(
        [near, far]
            .into_iter()
            .enumerate()
            .map(|end| Box::new(link(end).expect("a socket")) as Box<dyn Link>),
    )
}

/// One message, sent and received.
pub(super) fn pass<const BYTES: usize>([mut near, mut far]: Ends) -> Turn {
    let (body, mut found) = (Paged::<u8, BYTES>::of(7), Paged::<u8, BYTES>::of(0));
    Box::new(move || {
        while !near.try_send(0, &TAG, BYTES, &mut once(Source::from(&body.0[..]))).expect("sound") {
            far.progress().expect("sound");
            near.progress().expect("sound");
        }
        assert_eq!(far.head(0).expect("sound").map(|head| head.bytes), Some(BYTES));
        while !far.take(0, found.0[..].as_mut().into()).expect("sound") {}
    })
}

/// One signal, given and seen.
pub(super) fn signal() -> Turn {
    let [mut near, far] = windows();
    let mut value = 0;
    Box::new(move || {
        value += 1;
        near.signal(0, value);
        assert_eq!(far.signals(0, 0), value);
    })
}

/// One post with 8 bytes of data, as small operations travel.
pub(super) fn post() -> Turn {
    let [mut near, mut far] = windows();
    let (mut number, mut found) = (0, [0; 8]);
    Box::new(move || {
        copy(near.own_cell(Cell::Short, number, 0, 8), number.to_ne_bytes()[..].into());
        near.post(Cell::Short, number, number + 1, &TAG);
        assert_eq!(far.posted(0, Cell::Short, number), number + 1);
        copy(found[..].as_mut().into(), far.cell(0, Cell::Short, number, 0, 8));
        assert_eq!(u64::from_ne_bytes(found), number);
        number += 1;
        far.set_seen(number);
    })
}

fn windows() -> [Window; 2] {
    let meshes = threads::mesh(2, GEOMETRY).expect("little memory");
    ends(meshes.into_iter().filter_map(|mesh| mesh.window))
}

fn ends<T>(ends: impl Iterator<Item = T>) -> [T; 2] {
    let ends: Vec<_> = ends.collect();
    ends.try_into().ok().expect("two ends")
}

const TAG: Tag = Tag([1, 2, 3, 4]);
const GEOMETRY: Geometry =
    Geometry { lanes: 2, slots: 4, slot_bytes: 64 << 10, channels: 2, window_bytes: 1 << 16, heap_bytes: 0 };
