//! Somebody on the way between two ranks sees nothing of what they say, and changes nothing unnoticed.

#![cfg(not(loom))]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};
use unisono_transports::control::RemoteControl;
use unisono_transports::secure::handshake::{self, HandshakeConfig, Hello, Purpose, Secret};
use unisono_transports::sys::socket::Stream;
use unisono_transports::tcp::TcpLink;
use unisono_transports::{ControlChannel, Error, Geometry, Link, MAX_CONTROL_MSG_BYTES, PeerEvent, Tag};

const GEOMETRY: Geometry =
    Geometry { lanes: 1, slots: 4, slot_bytes: 100_000, signal_lanes: 1, window_bytes: 4096, heap_bytes: 0 };
const MESSAGES: u64 = 3;
/// Bytes of the frames that the client sends before its first record.
const HANDSHAKE: [usize; 2] = [84, 17];

/// What is done to the client's records on their way; they are counted from 0.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Tampering {
    Nothing,
    /// A bit of this byte of all that follows the handshake is changed.
    Flip(usize),
    Repeat(usize),
    Omit(usize),
    /// With the one after it.
    Swap(usize),
    /// The connection ends within it.
    Cut(usize),
}

/// The two ends of a connection, and what somebody in between has seen.
struct Tapped {
    near: Stream,
    far: Stream,
    seen: Receiver<Vec<u8>>,
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback");
    let near = TcpStream::connect(listener.local_addr().expect("one")).expect("loopback");
    (near, listener.accept().expect("loopback").0)
}

/// Connects two ranks by way of somebody who does `harm`.
fn tapped(encrypted: bool, harm: Tampering) -> Tapped {
    let ((near, entry), (exit, far)) = (tcp_pair(), tcp_pair());
    let (way, back) = ((entry.try_clone(), exit.try_clone()), (exit, entry));
    let (seen_by, seen) = channel();
    let way = (way.0.expect("a descriptor"), way.1.expect("a descriptor"));
    thread::spawn(move || {
        let all = relay(way.0, way.1, harm);
        let _ = seen_by.send(all);
    });
    thread::spawn(move || relay(back.0, back.1, Tampering::Nothing));
    let terms = HandshakeConfig { secret: Secret::random().expect("randomness"), encrypt: encrypted };
    let (mut near, mut far) = (Stream::from(near), Stream::from(far));
    let claims = Hello { purpose: Purpose::Data, rank: 0, ranks: 2, index: 0, session: 7 };
    thread::scope(|scope| {
        let accepted = scope.spawn(|| handshake::accept(&mut far, &terms, soon()));
        handshake::connect(&mut near, &terms, &claims, soon()).expect("friends");
        assert_eq!(accepted.join().expect("no panic").expect("friends"), claims);
    });
    Tapped { near, far, seen }
}

/// Copies until the end; all that it saw.
fn relay(mut from: TcpStream, mut to: TcpStream, harm: Tampering) -> Vec<u8> {
    let mut seen = Vec::new();
    let done = match harm {
        Tampering::Nothing => copy(&mut from, &mut to, &mut seen),
        harm => tamper_records(&mut from, &mut to, harm),
    };
    // Either end may go first, and nobody may come to much harm twice.
    drop(done);
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
    seen
}

fn copy(from: &mut TcpStream, to: &mut TcpStream, seen: &mut Vec<u8>) -> std::io::Result<()> {
    let mut buffer = [0; 4096];
    loop {
        match from.read(&mut buffer)? {
            0 => return Ok(()),
            count => {
                seen.extend(&buffer[..count]);
                to.write_all(&buffer[..count])?;
            }
        }
    }
}

fn first(from: &mut TcpStream, bytes: usize) -> std::io::Result<Vec<u8>> {
    let mut first = vec![0; bytes];
    from.read_exact(&mut first).map(|()| first)
}

/// The length of a record can be read by anybody.
fn record(from: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut record = first(from, 2)?;
    let length = u16::from_le_bytes([record[0], record[1]]);
    record.extend(first(from, length.into())?);
    Ok(record)
}

fn tamper_records(from: &mut TcpStream, to: &mut TcpStream, harm: Tampering) -> std::io::Result<()> {
    for bytes in HANDSHAKE {
        to.write_all(&first(from, bytes)?)?;
    }
    let mut passed = 0;
    for number in 0.. {
        let mut bytes = record(from)?;
        match harm {
            Tampering::Flip(at) if (passed..passed + bytes.len()).contains(&at) => bytes[at - passed] ^= 1,
            Tampering::Repeat(which) if which == number => bytes.extend(bytes.clone()),
            Tampering::Omit(which) if which == number => continue,
            Tampering::Swap(which) if which == number => bytes = [record(from)?, bytes].concat(),
            Tampering::Cut(which) if which == number => return to.write_all(&bytes[..bytes.len() / 2]),
            _ => {}
        }
        passed += bytes.len();
        to.write_all(&bytes)?;
    }
    Ok(())
}

fn body(number: u64) -> Vec<u8> {
    (0..GEOMETRY.slot_bytes).map(|index| (index as u64 * 7 + number) as u8).collect()
}

/// How it ends for a rank that sends some messages, and then waits for an answer.
fn send_all(mut link: TcpLink) -> Error {
    let end = soon();
    let mut sent = 0;
    loop {
        assert!(Instant::now() < end, "the sender waits for ever");
        let body = body(sent);
        let tried = match sent {
            MESSAGES => link.header(0).map(|head| assert!(head.is_none(), "nobody answers")),
            _ => link
                .try_send(0, &Tag([sent; 4]), body.len(), &mut std::iter::once((&body[..]).into()))
                .map(|done| sent += u64::from(done)),
        };
        match tried.and_then(|()| link.progress()) {
            Ok(()) => thread::yield_now(),
            Err(error) => return error,
        }
    }
}

/// Receives what comes whole; how many messages that were, and how it ended if not with the last one.
fn receive_all(link: &mut TcpLink) -> (u64, Option<Error>) {
    let end = soon();
    for number in 0..MESSAGES {
        let mut found = vec![0; GEOMETRY.slot_bytes];
        let taken = loop {
            assert!(Instant::now() < end, "the receiver waits for ever");
            let tried = link.header(0).and_then(|head| match head {
                Some(head) => {
                    assert_eq!((head.tag, head.bytes), (Tag([number; 4]), GEOMETRY.slot_bytes));
                    link.recv_into(0, found[..].as_mut().into())
                }
                None => Ok(false),
            });
            match tried {
                Ok(true) => break Ok(()),
                Ok(false) => thread::yield_now(),
                Err(error) => break Err(error),
            }
        };
        match taken {
            Ok(()) => assert!(found == body(number), "message {number} is another one"),
            Err(error) => return (number, Some(error)),
        }
    }
    (MESSAGES, None)
}

/// Messages through `harm`: what the receiver has of them, how it ends there, and at the sender.
fn transfer(harm: Tampering) -> (u64, Option<Error>, Error) {
    let Tapped { near, far, .. } = tapped(true, harm);
    let link = |peer, stream| TcpLink::new(peer, &GEOMETRY, vec![stream]).expect("a link");
    let (near, far) = (link(1, near), link(0, far));
    thread::scope(|scope| {
        let sender = scope.spawn(|| send_all(near));
        let mut far = far;
        let (received, ended) = receive_all(&mut far);
        // Whoever breaks off tells the sender so at once, not by its own end.
        let kept = ended.is_some().then_some(far);
        let at_sender = sender.join().expect("no panic");
        drop(kept);
        (received, ended, at_sender)
    })
}

/// Most of what they take is waiting.
fn all_at_once<T: Send>(cases: impl IntoIterator<Item = T>, check: impl Fn(T) + Sync) {
    thread::scope(|scope| {
        for case in cases {
            let check = &check;
            scope.spawn(move || check(case));
        }
    });
}

#[test]
fn all_messages_arrive_untampered() {
    let (received, ended, _) = transfer(Tampering::Flip(usize::MAX));
    assert!(received == MESSAGES && ended.is_none(), "{received} messages, then {ended:?}");
}

#[test]
fn flipped_bit_fails_both_ends() {
    // Lengths, text and tags of the first two records, and some of the middle.
    let record = 2 + (32 << 10) + 16;
    let near_edges = [0, 1, 2, 3, 17, 41, 42, 43, record - 17, record - 16, record - 1];
    let places =
        near_edges.into_iter().chain(near_edges.map(|at| record + at)).chain([40_000, 150_000, 250_000]);
    all_at_once(places, |at| {
        let (received, ended, at_sender) = transfer(Tampering::Flip(at));
        let Some(Error::ProtocolViolation { peer: 0, .. }) = ended else { panic!("byte {at}: {ended:?}") };
        assert!(received <= (at / GEOMETRY.slot_bytes) as u64, "byte {at}: {received} messages before it");
        assert!(matches!(at_sender, Error::ConnectionLost { peer: 1, .. }), "byte {at}: {at_sender}");
    });
}

#[test]
fn replayed_dropped_or_swapped_records_are_errors() {
    let harms = [
        Tampering::Repeat(0),
        Tampering::Repeat(3),
        Tampering::Omit(0),
        Tampering::Omit(2),
        Tampering::Swap(0),
        Tampering::Swap(4),
    ];
    all_at_once(harms, |harm| {
        let (_, ended, at_sender) = transfer(harm);
        assert!(matches!(ended, Some(Error::ProtocolViolation { peer: 0, .. })), "{harm:?}: {ended:?}");
        assert!(matches!(at_sender, Error::ConnectionLost { peer: 1, .. }), "{harm:?}: {at_sender}");
    });
}

#[test]
fn cut_connection_is_lost() {
    all_at_once([0, 5], |which| {
        let (_, ended, at_sender) = transfer(Tampering::Cut(which));
        assert!(matches!(ended, Some(Error::ConnectionLost { peer: 0, .. })), "record {which}: {ended:?}");
        assert!(matches!(at_sender, Error::ConnectionLost { peer: 1, .. }), "record {which}: {at_sender}");
    });
}

/// The notes of a rank, and how they end.
fn notes(sockets: &mut RemoteControl, count: usize) -> Vec<PeerEvent> {
    let (mut heard, end) = (Vec::new(), soon());
    while heard.len() < count {
        assert!(Instant::now() < end, "only {heard:?}");
        match sockets.poll() {
            Some(event) => heard.push(event),
            None => thread::yield_now(),
        }
    }
    heard
}

#[test]
fn tampered_control_message_ends_connection() {
    for at in [0, 2, 20] {
        let Tapped { near, far, .. } = tapped(true, Tampering::Flip(at));
        let [mut near, mut far] =
            [near, far].map(|stream| RemoteControl::new(vec![Some(stream)]).expect("a socket"));
        // The second and later ones are for a length that was changed.
        (0..4).for_each(|_| near.post(&[5; MAX_CONTROL_MSG_BYTES]));
        let unreadable = PeerEvent::Message { from: 0, bytes: Vec::new() };
        assert_eq!(notes(&mut far, 2), [unreadable, PeerEvent::Exited { from: 0 }], "byte {at}");
        let end = soon();
        while near.poll() != Some(PeerEvent::Exited { from: 0 }) {
            assert!(Instant::now() < end, "the sender does not hear of it");
        }
    }
}

/// Whether who carries messages, or notes, sees a text that is in them.
fn is_seen(encrypted: bool, as_note: bool) -> bool {
    const TEXT: &[u8] = b"what nobody else is to know";
    let Tapped { near, far, seen } = tapped(encrypted, Tampering::Nothing);
    if as_note {
        let [mut near, mut far] =
            [near, far].map(|stream| RemoteControl::new(vec![Some(stream)]).expect("a socket"));
        near.post(TEXT);
        assert_eq!(notes(&mut far, 1), [PeerEvent::Message { from: 0, bytes: TEXT.to_vec() }]);
    } else {
        let link = |peer, stream| TcpLink::new(peer, &GEOMETRY, vec![stream]).expect("a link");
        let (mut near, mut far) = (link(1, near), link(0, far));
        let (body, mut found) = (TEXT.repeat(1000), vec![0; 1000 * TEXT.len()]);
        let (mut sent, mut received, end) = (false, false, soon());
        while !received {
            assert!(Instant::now() < end, "the message does not arrive");
            let mut parts = std::iter::once((&body[..]).into());
            sent = sent || near.try_send(0, &Tag([1; 4]), body.len(), &mut parts).expect("sound");
            received = far.header(0).expect("sound").is_some()
                && far.recv_into(0, found[..].as_mut().into()).expect("sound");
        }
        assert!(found == body);
    }
    let seen = seen.recv_timeout(Duration::from_secs(10)).expect("it was carried");
    seen.windows(TEXT.len()).any(|window| window == TEXT)
}

#[test]
fn traffic_is_unreadable_on_the_wire() {
    for as_note in [false, true] {
        assert!(is_seen(false, as_note), "this test sees nothing at all");
        assert!(!is_seen(true, as_note), "a note: {as_note}");
    }
}
