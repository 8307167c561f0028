//! Parsers of received bytes, each as one function of bytes, for fuzzing.
//!
//! For any bytes, a parser ends, does not panic, and takes no more memory than the bytes justify.
//! `cargo xtask fuzz` looks for bytes that show otherwise.
mod record_layer;

use crate::control::RemoteControl;
use crate::net::handshake::{ClientHandshake, HandshakeConfig, Hello, Purpose, ServerHandshake};
use crate::net::stream::Stream;
use crate::secure::Secret;
use crate::shm::fuzzing as shm;
use crate::sys::{affinity, signals, user};
use crate::tcp::TcpLink;
use crate::testing::seeds::Target as FuzzTarget;
use crate::text::{printable, without_secrets};
use crate::{ControlChannel, Geometry, Link, MAX_CONTROL_MSG_BYTES, PeerEvent, Result, Tag};
use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use unisono_reducers::{Source, Target};

/// All parsers, with their names.
pub const TARGETS: &[FuzzTarget] = &[
    ("server_handshake", server_handshake),
    ("client_handshake", client_handshake),
    ("record_layer", crate::testing::fuzzing::record_layer::record_layer),
    ("frames", frames),
    ("control", control),
    ("shm_fifo", shm::shm_fifo),
    ("kernel_texts", kernel_texts),
    ("shown_texts", shown_texts),
];

/// Geometry with messages that are short, long, and longer than the read-ahead.
const GEOMETRY: Geometry =
    Geometry { lanes: 3, slots: 2, slot_bytes: 17 << 10, signal_lanes: 0, window_bytes: 0, heap_bytes: 0 };

/// Returns a socket that has received `bytes`, and its other end.
fn stream_with(bytes: &[u8]) -> (Stream, UnixStream) {
    let (mut local, remote) = UnixStream::pair().expect("a pair of sockets");
    // A socket holds only so many bytes at once.
    local.write_all(&bytes[..bytes.len().min(BYTES_MAX)]).expect("room");
    (Stream::Unix(remote), local)
}

const BYTES_MAX: usize = 64 << 10;

/// Parses bytes as those of a client.
fn server_handshake(bytes: &[u8]) {
    let (mut stream, _near) = stream_with(bytes);
    let (mut handshake, terms) = (
        ServerHandshake::default(),
        HandshakeConfig { secret: Secret::from_public("fuzzing"), encrypt: false },
    );
    let claims = handshake.advance(&mut stream, &terms);
    assert!(!matches!(claims, Ok(Some(_))), "no bytes can authenticate a peer");
}

/// Parses bytes as those of a server.
fn client_handshake(bytes: &[u8]) {
    let (mut stream, _near) = stream_with(bytes);
    let terms = HandshakeConfig { secret: Secret::from_public("fuzzing"), encrypt: false };
    let claims = Hello { purpose: Purpose::Data, rank: 1, ranks: 2, index: 0, session: 7 };
    let mut handshake = ClientHandshake::start(&mut stream, &terms, &claims).expect("room");
    let complete = handshake.advance(&mut stream, &terms);
    assert!(!matches!(complete, Ok(true)), "no bytes can authenticate a peer");
}

/// Parses bytes as those of a data connection, half of which arrive later.
fn frames(bytes: &[u8]) {
    let (soon, later) = bytes[..bytes.len().min(BYTES_MAX)].split_at(bytes.len().min(BYTES_MAX) / 2);
    let (stream, local) = stream_with(soon);
    let mut link = TcpLink::new(1, &GEOMETRY, vec![stream]).expect("a link");
    // Dropped before the link, which else waits until its peer has read all that was sent.
    let mut local = local;
    let mut bodies = vec![Vec::new(); GEOMETRY.lanes];
    if recv_all(&mut link, &mut bodies).is_ok() {
        local.write_all(later).and_then(|()| local.shutdown(Shutdown::Write)).expect("room");
        let _ = recv_all(&mut link, &mut bodies).and_then(|()| link.progress());
    }
}

/// Sends a message on every lane, so that credit matters, and takes all messages that have arrived.
fn recv_all(link: &mut TcpLink, bodies: &mut [Vec<u8>]) -> Result<()> {
    for lane in 0..GEOMETRY.lanes {
        link.try_send(lane, &Tag::default(), 1, &mut std::iter::once(Source::from(&[7][..])))?;
    }
    while (0..GEOMETRY.lanes)
        .try_fold(false, |any, lane| recv_one(link, lane, &mut bodies[lane]).map(|took| took || any))?
    {}
    Ok(())
}

/// Takes the next message of a lane if it has arrived: in place on the first lane, and by a copy on
/// the others.
fn recv_one(link: &mut TcpLink, lane: usize, target: &mut Vec<u8>) -> Result<bool> {
    let Some(head) = link.header(lane)? else { return Ok(false) };
    assert!(head.bytes <= GEOMETRY.slot_bytes);
    if lane > 0 {
        target.resize(head.bytes, 0);
        return link.recv_into(lane, Target::from(&mut target[..]));
    }
    let Some(body) = link.body(lane)? else { return Ok(false) };
    assert_eq!(body.len(), head.bytes);
    link.release(lane);
    Ok(true)
}

/// Parses bytes as those of a control connection.
fn control(bytes: &[u8]) {
    let (stream, local) = stream_with(bytes);
    drop(local);
    let mut sockets = RemoteControl::new(vec![None, Some(stream)]).expect("sockets");
    for _ in 0..=bytes.len() + 2 {
        match sockets.poll() {
            Some(PeerEvent::Message { from: 1, bytes }) => assert!(bytes.len() <= MAX_CONTROL_MSG_BYTES),
            Some(PeerEvent::Exited { from: 1 }) => return,
            Some(event) => panic!("unexpected {event:?}"),
            None => {}
        }
    }
}

/// Parses bytes as files of `/proc` and `/sys`.
fn kernel_texts(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let _ = signals::ignored_in(&text);
    let _ = affinity::runnable_threads(&text);
    let _ = [0, 1, u32::MAX].map(|uid| user::is_mapped(uid, &text));
    assert!(affinity::parse_cpu_list(&text).all(|core| core < rustix::thread::CpuSet::MAX_CPU));
}

/// Shows bytes as errors and logs do.
fn shown_texts(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let shown = printable(&text);
    assert!(!shown.contains(|letter: char| letter.is_control() && !"\n\t".contains(letter)));
    assert_eq!(printable(&shown), shown);
    let hidden = without_secrets(&text);
    let digits = hidden.split(|letter: char| !letter.is_ascii_hexdigit()).map(str::len).max();
    assert!(digits.is_none_or(|digits| digits < 24), "{digits:?} digits are shown");
    assert_eq!(without_secrets(&hidden), hidden);
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::net::handshake::VERSION;
    use crate::testing::seeds::{parse_changed_seeds, parse_seeds};
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// Generates bytes, some of which begin or repeat as those of a peer do.
    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        let noise = vec(any::<u8>(), 0..300);
        let start = prop_oneof![
            Just(Vec::new()),
            Just([&b"unisono\0"[..], &VERSION.to_le_bytes()].concat()),
            Just(b"m".to_vec()),
            Just(b"c".to_vec())
        ];
        let words = vec(prop_oneof![0u64..4, any::<u64>()], 0..60)
            .prop_map(|words| words.into_iter().flat_map(u64::to_le_bytes).collect::<Vec<u8>>());
        (start, prop_oneof![noise, words]).prop_map(|(start, tail)| [start, tail].concat())
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in bytes()) {
            TARGETS.iter().for_each(|(_, parse)| parse(&bytes));
        }
    }

    /// A peer that repeats such frames would keep a rank that reads them for ever.
    #[test]
    fn frame_that_moves_nothing_is_a_violation() {
        let mut frame = [0; 40];
        frame[0] = b'c';
        let (stream, _near) = stream_with(&frame.repeat(3));
        let mut link = TcpLink::new(1, &GEOMETRY, vec![stream]).expect("a link");
        let refused = link.header(0).expect_err("a violation");
        assert!(refused.to_string().contains("a frame without credit on lane 0"), "{refused}");
    }

    #[test]
    fn parsers_accept_every_corpus_seed() {
        parse_seeds(TARGETS);
    }

    #[test]
    fn parsers_survive_changed_corpus_seeds() {
        parse_changed_seeds(TARGETS, 300);
    }
}
