//! Links and windows, both ends in the hands of one thread.

use super::{Iteration, PageAligned};
use std::hint::black_box;
use std::iter::once;
use std::os::unix::net::UnixStream;
use unisono_reducers::{Source, copy};
use unisono_transports::net::stream::Stream;
use unisono_transports::tcp::TcpLink;
use unisono_transports::{Geometry, Link, SlotClass, Tag, Window, threads};

/// The two ends of a link or window between two ranks.
type Ends = [Box<dyn Link>; 2];

/// A tag as bytes and back.
pub(super) fn tag() -> Iteration {
    Box::new(|| assert_eq!(Tag::from_bytes(&black_box(black_box(TAG).to_bytes())), TAG))
}

/// Through shared memory.
pub(super) fn shared() -> Ends {
    let meshes = threads::fabrics(2, GEOMETRY).expect("little memory");
    let links = meshes.into_iter().map(|mesh| mesh.links.into_iter().flatten().next());
    ends(links.flatten())
}

/// Through what links over TCP do, but over local sockets: these deliver before the call returns.
pub(super) fn sockets() -> Ends {
    let (local, remote) = UnixStream::pair().expect("a pair of sockets");
    let link = |(rank, stream)| TcpLink::new(1 - rank, &GEOMETRY, vec![Stream::Unix(stream)]);
    ends(
        [local, remote]
            .into_iter()
            .enumerate()
            .map(|end| Box::new(link(end).expect("a socket")) as Box<dyn Link>),
    )
}

/// One message, sent and received.
pub(super) fn send_recv<const BYTES: usize>([mut local, mut remote]: Ends) -> Iteration {
    let (body, mut found) = (PageAligned::<u8, BYTES>::of(7), PageAligned::<u8, BYTES>::of(0));
    Box::new(move || {
        while !local.try_send(0, &TAG, BYTES, &mut once(Source::from(&body.0[..]))).expect("sound") {
            remote.progress().expect("sound");
            local.progress().expect("sound");
        }
        assert_eq!(remote.header(0).expect("sound").map(|head| head.bytes), Some(BYTES));
        while !remote.recv_into(0, found.0[..].as_mut().into()).expect("sound") {}
    })
}

/// One signal, set and seen.
pub(super) fn signal() -> Iteration {
    let [mut local, remote] = windows();
    let mut value = 0;
    Box::new(move || {
        value += 1;
        local.signal(0, value);
        assert_eq!(remote.last_signal(0, 0), value);
    })
}

/// One eager slot with 8 bytes, as small operations use it.
pub(super) fn publish() -> Iteration {
    let [mut local, mut remote] = windows();
    let (mut number, mut found) = (0, [0; 8]);
    Box::new(move || {
        copy(local.own_slot(SlotClass::Inline, number, 0, 8), number.to_ne_bytes()[..].into());
        local.publish(SlotClass::Inline, number, number + 1, &TAG);
        assert_eq!(remote.published(0, SlotClass::Inline, number), number + 1);
        copy(found[..].as_mut().into(), remote.slot(0, SlotClass::Inline, number, 0, 8));
        assert_eq!(u64::from_ne_bytes(found), number);
        number += 1;
        remote.set_acked(number);
    })
}

fn windows() -> [Window; 2] {
    let meshes = threads::fabrics(2, GEOMETRY).expect("little memory");
    ends(meshes.into_iter().filter_map(|mesh| mesh.window))
}

fn ends<T>(ends: impl Iterator<Item = T>) -> [T; 2] {
    let ends: Vec<_> = ends.collect();
    ends.try_into().ok().expect("two ends")
}

const TAG: Tag = Tag([1, 2, 3, 4]);
const GEOMETRY: Geometry = Geometry {
    lanes: 2,
    slots: 4,
    slot_bytes: 64 << 10,
    signal_lanes: 2,
    window_bytes: 1 << 16,
    heap_bytes: 0,
};
